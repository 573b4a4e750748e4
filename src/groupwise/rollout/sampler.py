"""What a strategy meets: the concrete `Sampler`, one a draw."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from groupwise.data import (
    ENVIRONMENT,
    TEMPLATE,
    CountedText,
    Draw,
    Engine,
    Environment,
    Finish,
    GenerationRequest,
    GroupwiseError,
    Ids,
    Observation,
    Outcome,
    Replay,
    Sample,
    Sampling,
    Usage,
    Verdict,
    Verifier,
)
from groupwise.models import Purpose, Tokenizer, conversation_turn, keyed_random
from groupwise.rollout.conversation import Conversation, ReplayMismatch
from groupwise.rollout.together import together

__all__ = ["DrawSampler"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class DrawSampler:
    """One draw's door to the engine, the verifier and random numbers.

    `sampling.max_tokens` is the budget of a whole sample, however often it is extended and whatever is inserted.
    `deadline` bounds each verdict and each call outside, in seconds.
    """

    draw: Draw
    engine: Engine
    verifier: Verifier
    tokenizer: Tokenizer
    sampling: Sampling
    seed: int
    purpose: int = Purpose.SAMPLE
    deadline: float = 60.0
    environment: Callable[[], Environment] | None = None
    replay: Replay | None = None
    frame: tuple[Ids, Ids] = ((), ())
    started: int = 0
    awaiting: Counter[str] = field(default_factory=Counter)
    """What this draw waits for at the moment, and how often."""
    conversations: dict[Ids, Conversation] = field(default_factory=dict)
    """The conversations with environments, by the stream of their sample."""

    def start(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]:
        """Empty samples, each with random numbers of its own, counted over the whole draw."""
        first, self.started = self.started, self.started + n
        limit = self.sampling.max_tokens
        return [
            Sample(context=context, stream=(i,), limit=limit, group=group, role=role) for i in range(first, first + n)
        ]

    async def extend(self, sample: Sample, *, limit: int | None = None) -> Sample:
        """The sample until it ends, or with `limit` more tokens: then it stays open (`finish` is None).

        A sample that has ended comes back as it is, unless something was inserted behind its end.
        """
        if sample.finish is not None and (not sample.origin or sample.origin[-1] >= 0):
            return sample
        budget = sample.limit - len(sample.tokens)
        more, finish = budget if limit is None else min(limit, budget), None
        while more > 0:
            ask = GenerationRequest(
                context=sample.context + sample.tokens, limit=more, draw=self.draw.id, stream=sample.stream,
                at=len(sample.tokens), sampling=self.sampling, purpose=self.purpose,
            )  # fmt: skip
            with self._awaiting("the engine"):
                span = await self.engine.sample(ask)
            sample = sample.with_tokens(span.tokens, span.versions, span.logp, span.routes)
            more, finish = more - len(span.tokens), span.finish
            if finish is not Finish.cut:
                break
        if finish is not Finish.stop:
            finish = Finish.length if len(sample.tokens) >= sample.limit else None
        text, ends = self.tokenizer.decode_with_ends(sample.tokens)
        return replace(sample, finish=finish, text=text, ends=ends)

    async def sample(self, context: Ids, n: int = 1, *, group: int = 0, role: str = "answer") -> list[Sample]:
        """`n` whole answers to one context."""
        return await together(self.extend(s) for s in self.start(context, n, group=group, role=role))

    async def verify(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples in their order, each with its verdict on the draw's prompt.

        A verifier that fails on an answer makes it unverifiable; only a typed error, which is no answer's, is raised.
        """
        return await together(self._judged(s) for s in samples)

    async def reply(self, sample: Sample) -> Observation:
        """What the sample's environment answers to its last turn; to an empty sample, how it opens the conversation.

        `ReplayMismatch` where the environment cannot be restored to its state before a kill. The conversation must then
        start again from the empty sample, with a new environment. Usage where the run has none.
        """
        if self.environment is None:
            fix = "say --environment calculator_tools, or my_file:MyEnvironment with --use my_file.py"
            raise Usage("a strategy asks for an environment, and the recipe names none", fix=fix)
        talk = self.conversations.get(sample.stream)
        if talk is None:
            name = f"{self.purpose} {self.draw.id} {self.sampling.temperature}"
            talk = Conversation(self.environment(), self.replay, name, self.draw.prompt, self.random)
            self.conversations[sample.stream] = talk
        with self._awaiting("the environment"):
            try:
                return await talk.reply(sample)
            except ReplayMismatch:
                self.conversations[sample.stream] = replace(talk, environment=self.environment(), reads=False, past=[])
                raise

    def append(self, sample: Sample, words: str) -> Sample:
        """The sample with an environment's words behind its own, open again, and the template's (`frame`) around them.

        What `CountedText` count is counted. BadData for words that have no tokens.
        """
        before, ids, after = conversation_turn(self.tokenizer, self.frame, sample.tokens, words)
        if isinstance(words, CountedText):
            sample = sample.add_counts(words.counts)
        return sample.insert(before, TEMPLATE).insert(ids, ENVIRONMENT).insert(after, TEMPLATE).with_finish(None)

    async def score(self, context: Ids, sample: Sample) -> tuple[float, ...]:
        """The log-prob of each of the sample's tokens, had it been an answer to `context`."""
        with self._awaiting("the engine"):
            return await self.engine.score(context, sample.tokens)

    async def outside(self, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """What a tool, an environment or a judge answers. TimeoutError beyond the deadline."""
        with self._awaiting(_named(call)):
            async with asyncio.timeout(self.deadline):
                return await call(*args)

    def random(self, *key: int) -> Random:
        """A generator named by the draw and the key: no order of calls matters."""
        return keyed_random((self.seed, Purpose.STRATEGY), self.purpose, self.draw.id, *key)

    async def _judged(self, sample: Sample) -> Sample:
        with self._awaiting("the verifier"):
            limit = asyncio.timeout(self.deadline)
            try:
                async with limit:
                    verdict = _sound(await self.verifier(self.draw.prompt, sample))
            except GroupwiseError:  # not this answer's fault: a pool of workers that is gone, say
                raise
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
                if isinstance(error, TimeoutError) and limit.expired():
                    cause = f"no verdict within {self.deadline:g} seconds"
                verdict = Verdict(Outcome.unverifiable, cause=cause)
        return replace(sample, verdict=verdict)

    @contextmanager
    def _awaiting(self, what: str) -> Iterator[None]:
        self.awaiting[what] += 1
        try:
            yield
        finally:
            self.awaiting[what] -= 1


def _sound(verdict: Any) -> Verdict:
    """The verdict itself, or an unverifiable one that says what is wrong with it."""
    wrong = ""
    if not isinstance(verdict, Verdict) or not isinstance(verdict.outcome, Outcome):
        wrong = f"the verifier said {verdict!r:.200}, which is no Verdict"
    elif verdict.score is not None and not 0 <= verdict.score <= 1:
        wrong = f"the verifier's score is {verdict.score}, outside [0, 1]"
    elif not all(math.isfinite(x) for x in verdict.parts.values()):
        wrong = f"a part of the verifier's score is not finite: {dict(verdict.parts)}"
    return Verdict(Outcome.unverifiable, cause=wrong) if wrong else verdict


def _named(call: Any) -> str:
    return getattr(call, "__name__", type(call).__name__)
