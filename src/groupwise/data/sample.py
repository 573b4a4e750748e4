"""What flows before there are tensors: problems, draws, answers and what was said of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any

__all__ = [
    "ENVIRONMENT",
    "TEMPLATE",
    "WRITTEN",
    "CountedText",
    "Draw",
    "Finish",
    "Generation",
    "GenerationRequest",
    "Ids",
    "Outcome",
    "Prompt",
    "Rollout",
    "Sample",
    "Sampling",
    "Verdict",
]

Ids = tuple[int, ...]

ENVIRONMENT, TEMPLATE, WRITTEN = -1, -2, -3
"""Origins of tokens that no policy sampled; from 0 on, an origin is the version of the weights that did."""


class Outcome(IntEnum):
    """What a verifier says: `malformed` is an answer in which nothing to grade was found, and counts as wrong."""

    wrong = 0
    correct = 1
    malformed = 2
    unverifiable = 3


class Finish(IntEnum):
    """Why an answer ended, in the engine's own words: an end token or stop string, its budget, or an interruption."""

    stop = 0
    length = 1
    cut = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of one answer; `score` in [0, 1] for graded answers, `cause` says why one is unverifiable.

    `said` is what it read as the answer, so that answers can be counted as votes: equal text is an equal answer.

    >>> Verdict(Outcome.correct).value
    1.0
    """

    outcome: Outcome
    score: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""
    answer: str | None = None

    @property
    def value(self) -> float:
        """`score` where there is one, else 1 for a right answer and 0 for any other, and for one that nobody judged."""
        if self.outcome is Outcome.unverifiable:
            return 0.0
        return self.score if self.score is not None else float(self.outcome is Outcome.correct)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem: the ids that the policy is conditioned on, and what only the verifier and the strategy may read."""

    id: str
    context: Ids
    text: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt handed out with a number of samples. `id` counts the run's draws, so it names random numbers."""

    id: int
    prompt: Prompt
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generated answer. Token in, token out: `text` is only ever read off `tokens`, never the other way.

    `stream` names its random numbers; `origin` and `logp` have one entry a token, `logp` (under the law that the token
    was sampled from) is NaN where nothing was sampled. `ends[i]` is where token i ends in `text`. `routes` are the
    experts of a mixture that context and tokens went to when they were sampled, as far as an engine wrote that down.

    >>> s = Sample(context=(5, 6), stream=(0,), tokens=(7, 8), origin=(0, 0), logp=(-0.5, -0.1))
    >>> s.insert((9,), ENVIRONMENT).tokens, s.fork(1, 3).stream
    ((7, 8, 9), (0, 1, 3))
    """

    context: Ids
    stream: Ids
    limit: int = 0
    tokens: Ids = ()
    origin: Ids = ()
    logp: tuple[float, ...] = ()
    routes: tuple[bytes, ...] = ()
    finish: Finish | None = None
    text: str = ""
    ends: Ids = ()
    group: int = 0
    role: str = "answer"
    parent: int | None = None
    verdict: Verdict | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    """What a strategy and its environment counted on the way, by name: each is a metric. A conversation has some."""

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.origin) == len(self.logp):
            raise ValueError(f"{len(self.tokens)} tokens, {len(self.origin)} origins and {len(self.logp)} log-probs")

    @property
    def trained(self) -> tuple[bool, ...]:
        """Which tokens a policy is trained on: what it sampled, and what was written for it to learn."""
        return tuple(o >= 0 or o == WRITTEN for o in self.origin)

    @property
    def oldest(self) -> int | None:
        """The oldest weights that sampled a token; None where no token was sampled."""
        return min((o for o in self.origin if o >= 0), default=None)

    @property
    def turns(self) -> tuple[tuple[int, int], ...]:
        """Where each turn of the model's begins and ends among the tokens: the stretches that are trained.

        >>> told = Sample(context=(1,), stream=(0,)).insert((5, 6), WRITTEN).insert((7,), ENVIRONMENT)
        >>> told.insert((8,), WRITTEN).turns
        ((0, 2), (3, 4))
        """
        edges = [i for i, (a, b) in enumerate(pairwise((False, *self.trained, False))) if a != b]
        return tuple(zip(edges[::2], edges[1::2]))

    @property
    def last_turn(self) -> "Sample":
        """What the model said last, as an answer to all that came before it; empty where it had nothing to say to that.

        Of a sample without other tokens than its own it is all.
        """
        at = next((i + 1 for i in reversed(range(len(self.tokens))) if not self.trained[i]), 0)
        said = self.ends[at - 1] if at else 0
        return replace(
            self, context=self.context + self.tokens[:at], tokens=self.tokens[at:], origin=self.origin[at:],
            logp=self.logp[at:], text=self.text[said:], ends=tuple(end - said for end in self.ends[at:]),
        )  # fmt: skip

    def insert(self, ids: Ids, origin: int) -> "Sample":
        """The sample with tokens that nobody sampled behind its own."""
        return self.with_tokens(ids, (origin,) * len(ids), (math.nan,) * len(ids))

    def with_tokens(
        self, tokens: Ids, origin: Ids, logp: tuple[float, ...], routes: tuple[bytes, ...] = ()
    ) -> "Sample":
        """The sample with more tokens; `routes` are of all that stands before them, and of them."""
        return replace(
            self, tokens=self.tokens + tokens, origin=self.origin + origin, logp=self.logp + logp,
            routes=self.routes + routes[len(self.routes) :],
        )  # fmt: skip

    def with_finish(self, finish: Finish | None) -> "Sample":
        return replace(self, finish=finish)

    def with_text(self, text: str, ends: Ids) -> "Sample":
        """The sample with the text of its tokens, and where in it each token ends."""
        return replace(self, text=text, ends=ends)

    def with_verdict(self, verdict: Verdict) -> "Sample":
        return replace(self, verdict=verdict)

    def add_counts(self, counts: Mapping[str, float]) -> "Sample":
        """The sample with more added to what was counted before."""
        names = {**self.counts, **counts}
        return replace(self, counts={name: self.counts.get(name, 0) + counts.get(name, 0) for name in names})

    def fork(self, at: int, i: int) -> "Sample":
        """Its first `at` tokens, open again, under random numbers of its own."""
        return replace(
            self, tokens=self.tokens[:at], origin=self.origin[:at], logp=self.logp[:at], stream=(*self.stream, at, i),
            routes=self.routes[: len(self.context) + at - 1], finish=None, text="", ends=(), verdict=None, counts={},
        )  # fmt: skip


class CountedText(str):
    """What an environment says, and what is to be counted of it: text with numbers by name, each of which is a metric.

    >>> said = Words("error: no such tool", calls=1, malformed=1)
    >>> said == "error: no such tool", said.counts
    (True, {'calls': 1, 'malformed': 1})
    """

    __slots__ = ("counts",)
    counts: Mapping[str, float]

    def __new__(cls, text: str, **counts: Any) -> "CountedText":
        """ValueError for a count that is no finite number."""
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int | float) or not math.isfinite(count):
                raise ValueError(f"the count {name} is {count!r}\nsay a number")
        words = super().__new__(cls, text)
        words.counts = counts
        return words


@dataclass(frozen=True, slots=True)
class Rollout:
    """All that one draw brought back, one group or several. `kept` only marks; `cause` says why not."""

    draw: Draw
    samples: tuple[Sample, ...]
    selected: tuple[bool, ...] | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The law that answers are drawn from. Temperature 0 is greedy; `stop` strings stay in the answer.

    Truncation (`top_p`, `top_k`, `min_p`) is for evaluation: in training it would bias every ratio.
    """

    temperature: float = 1.0
    max_tokens: int = 1024
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        cuts = 0 < self.top_p <= 1 and self.top_k >= 0 and 0 <= self.min_p < 1
        if not (cuts and 0 <= self.temperature < float("inf")):
            raise ValueError(f"{self}\nneeds temperature >= 0, 0 < top_p <= 1, top_k >= 0 and 0 <= min_p < 1")
        if "" in self.stop:
            raise ValueError("a stop string is empty: it would end every answer after one token\nleave it out")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}\nan answer needs room for at least one token")

    @property
    def truncated(self) -> bool:
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for one sample's next tokens. `at` of them stand already at the end of `context`; `limit` more may.

    The random number of the token at position t is keyed by (seed, purpose, draw, stream, t): mates change nothing.
    """

    context: Ids
    limit: int
    draw: int
    stream: Ids
    at: int = 0
    sampling: Sampling = Sampling()
    purpose: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The engine's answer to an ask. `logp` is under the law that was sampled from; an interrupted span is `cut`.

    `routes` are the experts of a mixture, where the engine writes them down: of the ask's context and of the tokens but
    the last, which went nowhere.
    """

    tokens: Ids
    logp: tuple[float, ...]
    versions: Ids
    finish: Finish
    routes: tuple[bytes, ...] = ()
