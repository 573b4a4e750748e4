"""One environment in one conversation, heard through the journal."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from groupwise.data import Environment, Observation, Prompt, Replay, Sample


class ReplayMismatch(Exception):
    """Asked again after a kill, an environment says something else than before: the conversation cannot go on."""


@dataclass(slots=True, eq=False)
class Conversation:
    """What was answered before a kill is heard again from the journal, and not asked again.

    An environment stands where it stood only if it heard what it heard. So before the first new question it is begun
    anew and told all that came before; `ReplayMismatch` where it does not answer as it did.
    """

    environment: Environment
    replay: Replay | None
    name: str
    """What tells this conversation from all others whose questions stand in the same journal."""
    prompt: Prompt
    random: Callable[[], Random]
    """Numbers for `reset`, the same for each sample of a draw: members of a group meet equal environment."""
    reads: bool = True
    """Whether answers from before a kill are heard at all. New ones are written in any case."""
    past: list[tuple[str, Observation]] = field(default_factory=list)
    """What was only read in the journal: what the model said, and what was answered."""

    async def reply(self, sample: Sample) -> Observation:
        """The answer to the sample's last turn; to an empty sample, how the conversation opens."""
        said = sample.last_turn.text
        question = self._question(sample)
        if self.reads and self.replay is not None and question in self.replay:
            self.past.append((said, reply := self.replay[question]))
            return reply
        past, self.past = self.past, []
        for i, (before, reply) in enumerate(past):
            again = self.environment.restore(before, reply) if i else self.environment.reset(self.prompt, self.random())
            if await again != reply:
                raise ReplayMismatch
        reply = await (
            self.environment.step(said) if sample.tokens else self.environment.reset(self.prompt, self.random())
        )
        if self.replay is not None:
            self.replay.write(question, reply)
        return reply

    def _question(self, sample: Sample) -> str:
        words: list[Any] = [self.name, sample.stream, sample.context, sample.tokens]
        return sha256(json.dumps(words).encode()).hexdigest()[:32]
