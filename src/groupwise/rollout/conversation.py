"""One conversation with an environment, replayed from the log after a kill."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

from groupwise.data import Environment, EnvironmentReplyLog, Observation, Prompt, Sample


class ReplyMismatch(Exception):
    """After a resume, an environment's reply differs from the replay log's, so the conversation must start over."""


@dataclass(slots=True, eq=False)
class ReplayableEnvironment:
    """Queries the environment, or returns the logged observation if the run was killed after it was logged.

    An environment has the same state only after the same messages. Before the first query that is not in the log, a
    new environment is reset and restored with all logged messages and observations. `ReplyMismatch` if one differs.
    """

    environment: Environment
    environment_reply_log: EnvironmentReplyLog | None
    draw_log_key: str
    """The draw's key in the replay log. With the random stream of the sample it identifies one conversation."""
    prompt: Prompt
    create_reset_random: Callable[[], Random]
    """Creates the random generator for `reset`: equal for all samples of a draw, so their environments are equal."""
    replays_from_log: bool = True
    """Whether to answer from the replay log where possible. New replies are logged in both cases."""
    replayed_messages: list[tuple[str, Observation]] = field(default_factory=list)
    """Messages and replies from the log, with which to restore the environment before its first new reply."""

    async def reply(self, sample: Sample) -> Observation:
        """The environment's reply to the sample's last turn; for an empty sample, its opening text."""
        message = sample.last_turn.text
        key = self._key(sample)
        if self.replays_from_log and self.environment_reply_log is not None and key in self.environment_reply_log:
            self.replayed_messages.append((message, observation := self.environment_reply_log[key]))
            return observation
        replayed, self.replayed_messages = self.replayed_messages, []
        for i, (earlier, logged) in enumerate(replayed):
            restored = self.environment.restore(earlier, logged) if i else self._reset()
            if await restored != logged:
                raise ReplyMismatch
        observation = await (self.environment.step(message) if sample.tokens else self._reset())
        if self.environment_reply_log is not None:
            self.environment_reply_log.write(key, observation)
        return observation

    def _reset(self) -> Any:
        return self.environment.reset(self.prompt, self.create_reset_random())

    def _key(self, sample: Sample) -> str:
        fields: list[Any] = [self.draw_log_key, sample.stream, sample.context, sample.tokens]
        return sha256(json.dumps(fields).encode()).hexdigest()[:32]
