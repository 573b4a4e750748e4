"""The data types before tensors: prompts, draws, samples and rollouts."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

from groupwise.core.field_types import check_types
from groupwise.data.agent_requests import AgentRequest
from groupwise.data.generation import ContextKey, Finish, Ids, Likeliest, content_hash
from groupwise.data.pictures import Picture, hash_of_pictures
from groupwise.data.verdicts import Verdict

__all__ = ["ENVIRONMENT", "SAMPLED", "TEMPLATE", "WRITTEN", "Draw", "Prompt", "ReplyWithCounts", "Rollout", "Sample"]

T = TypeVar("T")

SAMPLED = "sampled"
"""The name of the view that keeps the prompt a sample was generated from, if it is trained under another prompt."""

ENVIRONMENT, TEMPLATE, WRITTEN = -1, -2, -3
"""Values of `origin` for tokens that no policy sampled. A value >= 0 is the version of the weights that sampled it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem: the token ids that the policy is conditioned on, its text, and the columns of its data row.

    Verifiers, environments and strategies read `row`; the policy does not. `row["answer"]` is the gold answer. `row` is
    read-only, but its values are not copied. `pictures` are those behind the placeholders in `token_ids`, in their
    order. `content_hash` is a hash of other content than tokens, by default of the pictures; empty if there is none.
    `Usage` for an argument of another type.

    >>> Prompt("p", (5, 6), "2+2=", {"answer": 4, "level": 1}).row["level"]
    1
    """

    id: str
    token_ids: Ids
    text: str = ""
    row: Mapping[str, Any] = field(default_factory=dict)
    content_hash: str = ""
    pictures: tuple[Picture, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "row", MappingProxyType(dict(self.row)))
        object.__setattr__(self, "content_hash", self.content_hash or hash_of_pictures(self.pictures))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled.
        return type(self), (self.id, self.token_ids, self.text, dict(self.row), self.content_hash, self.pictures)


@dataclass(frozen=True, slots=True)
class Draw:
    """A request for `n` samples of one prompt. `id` numbers the draws of a run and is a key of the random numbers.

    The curriculum passes data to the strategy in `metadata`, such as a difficulty level. A strategy that returns its
    rollout with more metadata passes JSON data back.
    """

    id: int
    prompt: Prompt
    n: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generated answer, or one conversation. `text` is decoded from `tokens` and never tokenised again.

    `stream` is the key of its random numbers. `origin` and `logp` have one entry per token. `logp` is under the
    distribution that the token was sampled from, and NaN for a token that was not sampled. `token_ends[i]` is the end
    of token i in `text`, in characters. `routes` are the experts of a mixture for each context and answer token, as far
    as the engine recorded them.

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
    actions: tuple[bytes, ...] = ()
    """For a policy whose actions are not text tokens: each token's encoded action. Tokens after the last have none."""
    top_logprobs: tuple[Likeliest, ...] = ()
    """The most probable tokens at each token's position, if requested. Tokens after the last entry have none."""
    finish: Finish | None = None
    text: str = ""
    token_ends: Ids = ()
    group: int = 0
    """The group in its rollout: an advantage compares the samples of a rollout that have equal `group` and `role`."""
    role: str = "answer"
    """The kind of sample: "answer", or another role that a sampling strategy gives it, such as "critique"."""
    parent: int | None = None
    verdict: Verdict | None = None
    content_hash: str = ""
    """Hash of the prompt's content besides token ids, such as images."""
    prompt_views: Mapping[str, Ids] = field(default_factory=dict)
    """Alternative prompts for the same tokens, by name, such as one with a hint. Measures may condition on them."""
    view_hashes: Mapping[str, str] = field(default_factory=dict)
    """The `content_hash` of each view that has other pictures than the sample's own prompt, by the view's name."""
    token_marks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Named numbers per token from the strategy or the verifier. Tokens after the last number have none."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Named counts from the strategy and the environment, such as tool calls. Each count becomes a metric."""
    requests: tuple[AgentRequest, ...] = ()
    """The requests of an agent whose answers are in the sample, in their order."""

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.origin) == len(self.logp):
            raise ValueError(
                f"a sample has {len(self.tokens)} tokens, {len(self.origin)} origins and {len(self.logp)} log-probs\n"
                "give `origin` and `logp` one entry per token"
            )
        if len(self.actions) > len(self.tokens):
            raise ValueError(
                f"a sample has {len(self.actions)} encoded actions for {len(self.tokens)} tokens\n"
                "give `path` at most one entry per token"
            )
        if len(self.top_logprobs) > len(self.tokens):
            raise ValueError(
                f"a sample has {len(self.top_logprobs)} entries of `top_logprobs` for {len(self.tokens)} tokens\n"
                "give `top_logprobs` at most one entry per token"
            )
        for name, numbers in self.token_marks.items():
            if len(numbers) > len(self.tokens):
                raise ValueError(
                    f"the mark {name} (numbers per token) has {len(numbers)} entries for {len(self.tokens)} tokens\n"
                    "give each entry of `token_marks` at most one number per token"
                )
        if "" in self.prompt_views or () in self.prompt_views.values():
            raise ValueError(
                "a view (another prompt for the same tokens) lacks its name or its prompt\n"
                "give each entry of `prompt_views` a name and at least one token id"
            )

    @property
    def context_key(self) -> ContextKey:
        """The identity of the sample's prompt. Prompts with equal ids but different images are different."""
        return self.content_hash, self.context

    @property
    def trained(self) -> tuple[bool, ...]:
        """For each token, whether it is trained on: it was sampled by a policy, or written as a training target."""
        if self.all_sampled:
            return (True,) * len(self.origin)
        return tuple(o >= 0 or o == WRITTEN for o in self.origin)

    @property
    def trained_places(self) -> Sequence[int]:
        """The indices of the tokens that are trained on."""
        return range(len(self.origin)) if self.all_sampled else [i for i, t in enumerate(self.trained) if t]

    @property
    def all_sampled(self) -> bool:
        """Whether a policy sampled every token, as in an answer without an environment."""
        return min(self.origin, default=0) >= 0

    @property
    def oldest(self) -> int | None:
        """The oldest weights version that sampled a token; None if no token was sampled."""
        sampled = self.origin if self.all_sampled else [o for o in self.origin if o >= 0]
        return min(sampled, default=None)

    @property
    def turns(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each turn of the model in a conversation: a run of consecutive trained tokens.

        >>> sample = Sample(context=(1,), stream=(0,)).insert((5, 6), WRITTEN).insert((7,), ENVIRONMENT)
        >>> sample.insert((8,), WRITTEN).turns
        ((0, 2), (3, 4))
        """
        if self.all_sampled:
            return ((0, len(self.tokens)),) if self.tokens else ()
        edges = [i for i, (a, b) in enumerate(pairwise((False, *self.trained, False))) if a != b]
        return tuple(zip(edges[::2], edges[1::2]))

    @property
    def is_conversation(self) -> bool:
        """Whether the sample has several turns of the model, or any `counts` (of an environment or a strategy)."""
        return bool(self.counts) or len(self.turns) > 1

    @property
    def last_turn(self) -> "Sample":
        """The model's last turn as a separate sample, whose context is everything before it.

        It is empty if the sample ends with tokens that are not trained, and the whole sample if all tokens are trained.
        """
        trained = self.trained
        return self.after(next((i + 1 for i in reversed(range(len(trained))) if not trained[i]), 0))

    def after(self, at: int) -> "Sample":
        """The tokens from index `at` on as a separate sample, whose context is everything before them."""
        start = self.token_ends[at - 1] if at else 0
        return replace(
            self, context=self.context + self.tokens[:at],
            content_hash=content_hash(self.content_hash, self.actions[:at]),
            tokens=self.tokens[at:], origin=self.origin[at:], logp=self.logp[at:], actions=self.actions[at:],
            top_logprobs=self.top_logprobs[at:],
            text=self.text[start:], token_ends=tuple(end - start for end in self.token_ends[at:]),
            prompt_views={name: context + self.tokens[:at] for name, context in self.prompt_views.items()},
            token_marks={name: numbers[at:] for name, numbers in self.token_marks.items()}, requests=(),
        )  # fmt: skip

    def under(self, view: str) -> "Sample":
        """A copy to train with another prompt: the view of this name replaces the prompt that it was sampled from.

        That context becomes the view `sampled`. Log-probs and versions stay as sampled, and so do the pictures of a
        view without its own (`view_hashes`). The experts of a mixture are dropped: they belong to the old context.

        >>> s = Sample(context=(5, 6), stream=(0,), prompt_views={"plain": (5,)}).under("plain")
        >>> s.context, s.prompt_views[SAMPLED]
        ((5,), (5, 6))
        """
        views = {**self.prompt_views, SAMPLED: self.prompt_views.get(SAMPLED, self.context)}
        hashes = {SAMPLED: self.content_hash, **self.view_hashes}
        return replace(
            self, context=self.prompt_views[view], content_hash=hashes.get(view, self.content_hash),
            prompt_views=views, view_hashes=hashes if view in hashes else self.view_hashes, routes=(),
        )  # fmt: skip

    def insert(self, ids: Ids, origin: int) -> "Sample":
        """A copy with tokens appended that the policy did not sample, such as an environment's reply."""
        return self.with_tokens(ids, (origin,) * len(ids), (math.nan,) * len(ids))

    def with_tokens(
        self, tokens: Ids, origin: Ids, logp: tuple[float, ...], routes: tuple[bytes, ...] = (),
        path: tuple[bytes, ...] = (), top_logprobs: tuple[Likeliest, ...] = (),
    ) -> "Sample":  # fmt: skip
        """A copy with tokens appended. `routes` covers the context, all earlier tokens and the new ones.

        `actions` and `top_logprobs` cover the new tokens. An earlier token without such an entry gets an empty one.
        """
        n = len(self.tokens)
        return replace(
            self, tokens=self.tokens + tokens, origin=self.origin + origin, logp=self.logp + logp,
            routes=self.routes + routes[len(self.routes) :], actions=_joined(self.actions, path, n, b""),
            top_logprobs=_joined(self.top_logprobs, top_logprobs, n, ()),
        )  # fmt: skip

    def with_finish(self, finish: Finish | None) -> "Sample":
        """A copy with this finish reason; None marks the sample as unfinished."""
        return replace(self, finish=finish)

    def with_text(self, text: str, ends: Ids) -> "Sample":
        """A copy with the decoded text, and the end of each token in it."""
        return replace(self, text=text, token_ends=ends)

    def with_verdict(self, verdict: Verdict, *, start: int = 0) -> "Sample":
        """A copy with a verdict on the tokens from `start` on. The verdict's step scores become numbers per token.

        Numbers of steps that end in one token are added. ValueError for a step that ends outside the judged text.

        >>> from groupwise.data import Outcome
        >>> sample = Sample(context=(5,), stream=(0,)).insert((6, 7, 8), WRITTEN).with_text("a=1 b", (1, 3, 5))
        >>> sample.with_verdict(Verdict(Outcome.wrong, step_scores={"line": [(3, 0.5)]})).token_marks
        {'line': (nan, 0.5, nan)}
        """
        before = self.token_ends[start - 1] if start else 0
        marks = {name: self._values_at_ends(steps, start, before) for name, steps in verdict.step_scores.items()}
        return replace(self, verdict=verdict, token_marks={**self.token_marks, **marks})

    def _values_at_ends(self, steps: Sequence[tuple[int, float]], start: int, before: int) -> tuple[float, ...]:
        values = [math.nan] * len(self.tokens)
        for end, value in steps:
            if not 0 < end <= len(self.text) - before:
                raise ValueError(
                    f"a verdict's step ends at character {end}, but the text has {len(self.text) - before} characters\n"
                    "let each end in `Verdict.step_scores` be above 0 and at most the length of the text"
                )
            token = bisect_left(self.token_ends, before + end, lo=start)  # the token of the step's last character
            values[token] = value if math.isnan(values[token]) else values[token] + value
        return tuple(values)

    def add_subscores(self, parts: Mapping[str, float]) -> "Sample":
        """A copy whose verdict also has these named scores. A sample without a verdict is returned unchanged."""
        if self.verdict is None:
            return self
        return replace(self, verdict=replace(self.verdict, subscores={**self.verdict.subscores, **parts}))

    def add_counts(self, counts: Mapping[str, float]) -> "Sample":
        """A copy with these counts added to the existing ones."""
        names = {**self.counts, **counts}
        return replace(self, counts={name: self.counts.get(name, 0) + counts.get(name, 0) for name in names})

    def fork(self, at: int, i: int) -> "Sample":
        """A new sample with the first `at` tokens, to be continued, with the random stream `(*stream, at, i)`."""
        return replace(
            self, tokens=self.tokens[:at], origin=self.origin[:at], logp=self.logp[:at], stream=(*self.stream, at, i),
            routes=self.routes[: len(self.context) + at - 1], actions=self.actions[:at],
            top_logprobs=self.top_logprobs[:at], finish=None, text="", token_ends=(), verdict=None, token_marks={},
            counts={}, requests=(),
        )  # fmt: skip


class ReplyWithCounts(str):
    """An environment's reply with named counts. Each count becomes a metric.

    >>> text = ReplyWithCounts("error: no such tool", calls=1, malformed=1)
    >>> text == "error: no such tool", text.counts
    (True, {'calls': 1, 'malformed': 1})
    """

    __slots__ = ("counts",)
    counts: Mapping[str, float]

    def __new__(cls, text: str, **counts: Any) -> "ReplyWithCounts":
        """ValueError if a count is not a finite number."""
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int | float) or not math.isfinite(count):
                raise ValueError(f"the count {name} is {count!r}\ngive a finite number")
        counted = super().__new__(cls, text)
        counted.counts = counts
        return counted


@dataclass(frozen=True, slots=True)
class Rollout:
    """All samples of one draw of a prompt. `selected` marks those to train on; `cause` says why there are none.

    A *group* is the samples that are compared with each other: those of one role with an equal `Sample.group`. A
    rollout has one group or several. The *episode* of an agent, all samples of its run, is no class: it lies in one
    rollout.
    """

    draw: Draw
    samples: tuple[Sample, ...]
    selected: tuple[bool, ...] | None = None
    cause: str = ""


def _joined(earlier: tuple[T, ...], new: tuple[T, ...], tokens: int, empty: T) -> tuple[T, ...]:
    """The entries of earlier and new tokens; each earlier token without one gets an empty entry."""
    return (*earlier, *(empty,) * (tokens - len(earlier)), *new) if new else earlier
