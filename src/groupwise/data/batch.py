"""`Batch`: samples as tensors, packed without padding: the trainable tokens, with rewards, advantages, log-probs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from groupwise.core.errors import Usage
from groupwise.data.generation import Ids
from groupwise.data.measures import Logp, NeededMeasure, Subscore, TokenMark
from groupwise.data.sample import SAMPLED, Rollout, Sample
from groupwise.data.segment_reductions import Segments
from groupwise.data.verdicts import Outcome

__all__ = ["Batch", "key_of", "pack", "rollout_of"]

MethodStates = Mapping[str, Any]
Key = tuple[int, Ids]

# For a type checker a column is a tensor, so that formulas read as formulas. At run time it is None until written.
Column = TypeVar("Column")
T = TypeVar("T")
if TYPE_CHECKING:
    Later = Annotated[Column, "None until written"]
else:
    Later = Optional
UNWRITTEN: Any = None

# The unit of each field. `take`, `keep`, `joined` and `to` are derived from it.
PER_SAMPLE, PER_TOKEN, SEGMENTS, PER_RUN = ({"per": unit} for unit in ("sample", "token", "segments", "run"))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """The samples of an iteration, a step or a microbatch, with their columns, such as rewards and log-probs.

    Numbers per sample are float64, and so are the statistics of rewards. Log-probs have the learner's dtype. A column
    is None until it is written; reading it earlier is a bug of groupwise, not of the user.

    >>> b = pack([rollout_of([1.0, 0.0], lengths=[2, 1])])
    >>> b.sequences.index.tolist(), b.groups.count, b.verdict_score.tolist()
    ([0, 0, 1], 1, [1.0, 0.0])
    """

    samples: tuple[Sample, ...] = field(metadata=PER_SAMPLE)
    sample_keys: tuple[Key, ...] = field(metadata=PER_SAMPLE)
    """The identity of each sample: (`Draw.id`, unique in the run; `Sample.stream`, the key of its random numbers)."""
    sequences: Segments = field(metadata=SEGMENTS)
    """Which tokens belong to which sample."""
    groups: Segments = field(metadata=SEGMENTS)
    """Which samples belong to which group."""
    rollouts: Segments = field(metadata=SEGMENTS)
    """Which groups belong to which rollout (all samples that were generated for one prompt)."""
    index_in_sample: Int[Tensor, " n"] = field(metadata=PER_TOKEN)
    """The index of each trainable token in its sample's tokens."""

    routes: tuple[tuple[bytes, ...], ...] = field(metadata=PER_SAMPLE)
    """For a mixture of experts: the experts of each context and answer token before the update, where known."""
    outcome: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    verdict_score: Float[Tensor, " s"] = field(metadata=PER_SAMPLE)
    subscores: Mapping[str, Float[Tensor, " s"]] = field(default_factory=dict, metadata=PER_SAMPLE)
    length: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """Number of tokens of each sample after its prompt, trained or not. A mask does not change it."""
    finish: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    length_limit: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """The largest `length` that each sample may reach: `max_new_tokens`, less after a prompt that leaves less room."""
    age: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """For each sample: the policy's version minus the version of its oldest sampled token; 0 if none was sampled."""
    staleness: Int[Tensor, " n"] = field(metadata=PER_TOKEN)
    """For each token: the policy's weight version minus the version that sampled it; 0 if it was not sampled."""
    reward: Later[Float[Tensor, " s"]] = field(default=UNWRITTEN, metadata=PER_SAMPLE)

    logp_engine: Float[Tensor, " n"] = field(metadata=PER_TOKEN)
    logp_old: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    advantage: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    loss_share: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    weight: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    logp: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    measures: Mapping[NeededMeasure, Float[Tensor, " n"]] = field(default_factory=dict, metadata=PER_TOKEN)

    max_new_tokens: int = field(metadata=PER_RUN)
    """The generation budget `sampling.max_tokens`, one number for all batches of a run. Components read it only here.

    A length is divided by it, never by `length_limit`, which depends on the prompt.
    """
    method_states: MethodStates = field(default_factory=dict, metadata=PER_RUN)

    def __getitem__(self, measure: NeededMeasure) -> Float[Tensor, " n_or_s"]:
        """The values of a measure, such as reference log-probs: one per token, or one per sample for a `Subscore`.

        Raises `Usage` for a subscore that no verdict has, unless no answer of the batch was graded.

        >>> pack([rollout_of([1.0, 0.0], subscores={"style": [0.5, 0.25]})])[Subscore("style")].tolist()
        [0.5, 0.25]
        """
        if isinstance(measure, Subscore):
            return self._subscore(measure.name)
        if measure == Logp("policy"):
            return self.logp_old
        if isinstance(measure, TokenMark) and measure not in self.measures:
            return torch.full_like(self.logp_engine, math.nan)
        return self.measures[measure]

    def under(self, view: str) -> tuple["Batch", Bool[Tensor, " n"]]:
        """The samples that have this view, with it as their prompt; and which of this batch's tokens belong to them.

        The view has the pictures of the sample's own prompt, unless it has its own (`Sample.view_hashes`).
        """
        has = [view in s.prompt_views for s in self.samples]
        part = self.take([i for i, present in enumerate(has) if present])
        samples = tuple(
            replace(s, context=s.prompt_views[view], content_hash=s.view_hashes.get(view, s.content_hash), routes=())
            for s in part.samples
        )
        which = self.sequences.spread(torch.tensor(has, dtype=torch.bool, device=self.index_in_sample.device))
        return replace(part, samples=samples, routes=((),) * len(samples)), which

    @property
    def same_context(self) -> Bool[Tensor, " n"]:
        """For each token, whether it is trained with the prompt that it was sampled from (see `Sample.under`)."""
        same = torch.tensor(
            [SAMPLED not in s.prompt_views for s in self.samples], dtype=torch.bool, device=self.index_in_sample.device
        )
        return self.sequences.spread(same)

    def has(self, part: Subscore) -> Bool[Tensor, " s"]:
        """For each sample, whether its verdict has a score of this name. A missing score is not the same as 0."""
        has_score = [s.verdict is not None and part.name in s.verdict.subscores for s in self.samples]
        return torch.tensor(has_score, dtype=torch.bool, device=self.verdict_score.device)

    def _subscore(self, name: str) -> Float[Tensor, " s"]:
        if name in self.subscores:
            return self.subscores[name]
        if bool(((self.outcome == Outcome.malformed) | (self.outcome == Outcome.unverifiable)).all()):
            return torch.zeros_like(self.verdict_score)  # nothing was graded, so the name may still be right
        evidence = f"their subscores are {', '.join(self.subscores)}" if self.subscores else "they have no subscores"
        raise Usage(
            f"no verdict has a subscore called {name!r}",
            evidence=evidence,
            fix="use a verifier whose verdicts have this subscore",
        )

    def at_trained(self, rows: Sequence[Sequence[Any]], dtype: torch.dtype) -> Shaped[Tensor, " n"]:
        """Select the entries of the batch's tokens from `rows`: one row per sample, one entry per token of the sample.

        >>> batch = pack([rollout_of([1.0, 0.0], lengths=[2, 1])])
        >>> batch.at_trained([[True, False], [True]], torch.bool).tolist()
        [True, False, True]
        """
        first = self.length.cumsum(0) - self.length
        entries = torch.tensor([x for row in rows for x in row], dtype=dtype, device=self.index_in_sample.device)
        return entries[self.sequences.spread(first) + self.index_in_sample]

    def __len__(self) -> int:
        """The number of samples, including samples without a token."""
        return len(self.samples)

    @property
    def tokens(self) -> int:
        """The number of trainable tokens."""
        return len(self.index_in_sample)

    @property
    def token_groups(self) -> Segments:
        """Which tokens belong to which group."""
        return self.sequences.then(self.groups)

    @property
    def turns(self) -> Segments:
        """Which tokens belong to which turn of the model. Turns are numbered through the step, sample by sample."""
        rows: list[list[int]] = []
        count = 0
        for sample in self.samples:
            row = [-1] * len(sample.tokens)  # no trained token lies outside of a turn
            for first, last in sample.turns:
                row[first:last] = [count] * (last - first)
                count += 1
            rows.append(row)
        return Segments(self.at_trained(rows, torch.long), count)

    @property
    def episode_keys(self) -> tuple[Key, ...]:
        """The identity of each sample's episode: (`Draw.id`, the first number of its stream)."""
        return tuple((draw, stream[:1]) for draw, stream in self.sample_keys)

    @property
    def episodes(self) -> Segments:
        """Which samples belong to which episode of an agent; without agents, each answer is one episode."""
        numbers: dict[Key, int] = {}
        index = [numbers.setdefault(key, len(numbers)) for key in self.episode_keys]
        return Segments(torch.tensor(index, dtype=torch.long, device=self.verdict_score.device), len(numbers))

    def by(self, column: str) -> Segments:
        """Segments of samples by an integer column: `batch.by("outcome").mean(lengths)` has one mean per outcome."""
        label = getattr(self, column)
        return Segments(label.long(), int(label.max()) + 1 if len(label) else 0)

    def of_role(self, role: str) -> "Batch":
        """The samples with this `role`: "answer", or a role that a strategy defines, such as "critique"."""
        chosen = [i for i, sample in enumerate(self.samples) if sample.role == role]
        return self if len(chosen) == len(self) else self.take(chosen)

    def having(self, **columns: Any) -> "Batch":
        """A copy of the batch with these columns replaced. `measures` are merged into the existing ones."""
        if "measures" in columns:
            columns["measures"] = {**self.measures, **columns["measures"]}
        return replace(self, **columns)

    def take(self, samples: Sequence[int] | Int[Tensor, " t"]) -> "Batch":
        """The chosen samples in the given order, with all columns. Empty groups and rollouts are dropped."""
        chosen = torch.as_tensor(samples, dtype=torch.long, device=self.index_in_sample.device)
        tokens, sequences = _tokens_of(self.sequences, chosen)
        groups, rollouts = _regroup(self.groups, self.rollouts, chosen)
        return replace(
            self,
            sequences=sequences,
            groups=groups,
            rollouts=rollouts,
            **{name: _rows(getattr(self, name), chosen) for name in columns("sample")},
            **{name: _rows(getattr(self, name), tokens) for name in columns("token")},
        )

    @staticmethod
    def joined(batches: Sequence["Batch"]) -> "Batch":
        """Concatenates batches. Groups and rollouts of different batches stay distinct."""
        first = batches[0]

        def concatenated(name: str) -> Segments:
            segments: list[Segments] = [getattr(b, name) for b in batches]
            starts = [sum(s.count for s in segments[:i]) for i in range(len(segments))]
            index = torch.cat([s.index + start for s, start in zip(segments, starts)])
            return Segments(index, sum(s.count for s in segments))

        rows = (*columns("sample"), *columns("token"))
        return replace(
            first,
            sequences=concatenated("sequences"),
            groups=concatenated("groups"),
            rollouts=concatenated("rollouts"),
            **{name: _concatenated([getattr(b, name) for b in batches]) for name in rows},
        )

    def keep(self, which: Bool[Tensor, " n"]) -> "Batch":
        """Drop the tokens where `which` is False. All samples stay, even without tokens."""
        chosen = which.nonzero().squeeze(1)
        per_token = {name: _rows(getattr(self, name), chosen) for name in columns("token")}
        return replace(self, sequences=self.sequences.keep(which), **per_token)

    def to(self, device: torch.device | str) -> "Batch":
        """A copy of the batch on another device."""
        names = (f.name for f in fields(self) if f.name not in ("samples", "sample_keys"))
        return replace(self, **{name: _moved(getattr(self, name), device) for name in names})


@cache
def columns(per: Literal["sample", "token", "segments", "run"]) -> tuple[str, ...]:
    """Names of the batch fields with one entry per sample, per token, and so on.

    >>> "reward" in columns("sample"), "logp" in columns("token")
    (True, True)
    """
    return tuple(f.name for f in fields(Batch) if f.metadata["per"] == per)


def pack(
    rollouts: Sequence[Rollout], *, version: int = 0, roles: Sequence[str] = ("answer",), max_tokens: int | None = None
) -> Batch:
    """Packs the selected samples of these roles, such as "answer", into one batch on the CPU.

    `version` is the current policy's version. Samples of a rollout with equal role and `group` form a group.
    `max_tokens` is the run's `sampling.max_tokens`; None, for samples without a run, takes their largest limit.
    """
    samples: list[Sample] = []
    keys: list[Key] = []
    group_of: list[int] = []
    rollout_of_group: list[int] = []
    for r, rollout in enumerate(rollouts):
        numbers: dict[tuple[str, int], int] = {}
        for i, sample in enumerate(rollout.samples):
            if sample.role not in roles or (rollout.selected is not None and not rollout.selected[i]):
                continue
            group = sample.role, sample.group
            if group not in numbers:
                numbers[group] = len(rollout_of_group)
                rollout_of_group.append(r)
            samples.append(sample)
            keys.append(key_of(rollout, sample))
            group_of.append(numbers[group])
    trained = [s.trained_places for s in samples]
    origin = torch.tensor(_entries([s.origin for s in samples], trained), dtype=torch.long)
    verdicts = [s.verdict for s in samples]
    assert all(v is not None for v in verdicts), "a sample without a verdict cannot be packed"
    names = sorted({name for v in verdicts if v is not None for name in v.subscores})
    if max_tokens is None:
        max_tokens = max((s.limit for r in rollouts for s in r.samples), default=0)
    return Batch(
        samples=tuple(samples),
        sample_keys=tuple(keys),
        sequences=Segments.of([len(t) for t in trained]),
        groups=Segments(torch.tensor(group_of, dtype=torch.long), len(rollout_of_group)),
        rollouts=Segments(torch.tensor(rollout_of_group, dtype=torch.long), len(rollouts)),
        index_in_sample=torch.tensor(list(chain.from_iterable(trained)), dtype=torch.long),
        routes=tuple(s.routes for s in samples),
        outcome=torch.tensor([int(v.outcome) for v in verdicts if v], dtype=torch.long),
        verdict_score=torch.tensor([v.value for v in verdicts if v], dtype=torch.float64),
        subscores={
            n: torch.tensor([v.subscores.get(n, 0.0) for v in verdicts if v], dtype=torch.float64) for n in names
        },
        length=torch.tensor([len(s.tokens) for s in samples], dtype=torch.long),
        finish=torch.tensor([-1 if s.finish is None else int(s.finish) for s in samples], dtype=torch.long),
        length_limit=torch.tensor([s.limit for s in samples], dtype=torch.long),
        age=torch.tensor([version - (version if s.oldest is None else s.oldest) for s in samples], dtype=torch.long),
        staleness=torch.where(origin >= 0, version - origin, 0),
        logp_engine=torch.tensor(_entries([s.logp for s in samples], trained), dtype=torch.float64),
        measures={
            TokenMark(name): _marks(name, samples, trained)
            for name in sorted({n for s in samples for n in s.token_marks})
        },
        max_new_tokens=max_tokens,
    )


def _entries(rows: Sequence[Sequence[T]], trained: Sequence[Sequence[int]]) -> list[T]:
    """The entries of the trained tokens. Each row has one entry per token of its sample."""
    return list(chain.from_iterable(
        row if len(indices) == len(row) else [row[i] for i in indices] for row, indices in zip(rows, trained)
    ))  # fmt: skip


def _marks(name: str, samples: Sequence[Sample], trained: Sequence[Sequence[int]]) -> Float[Tensor, " n"]:
    """The values of a mark (a named number per token, from a strategy or verifier); NaN for tokens without one."""
    numbers = (s.token_marks.get(name, ()) for s in samples)
    rows = [x[i] if i < len(x) else math.nan for x, tokens in zip(numbers, trained) for i in tokens]
    return torch.tensor(rows, dtype=torch.float64)


def key_of(rollout: Rollout, sample: Sample) -> Key:
    """The identity of a sample: (`Draw.id`, unique in the run; `Sample.stream`, the key of its random numbers)."""
    return rollout.draw.id, sample.stream


def rollout_of(
    scores: Sequence[float],
    *,
    lengths: Sequence[int] | None = None,
    limit: int = 16,
    subscores: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Rollout:
    """Create a rollout with these scores and lengths, for examples and tests. Token ids and log-probs are arbitrary.

    A score of 1 is correct, NaN is unverifiable, any other score is wrong. `subscores` are the verdicts'.
    """
    from groupwise.data.generation import Finish
    from groupwise.data.sample import Draw, Prompt
    from groupwise.data.verdicts import Verdict

    def sample(i: int, score: float, n: int) -> Sample:
        outcome = Outcome.unverifiable if score != score else Outcome.correct if score == 1 else Outcome.wrong
        return Sample(
            context=(1, 2), stream=(i,), limit=limit, tokens=tuple(3 + (i + t) % 5 for t in range(n)), origin=(0,) * n,
            logp=(-1.0,) * n, finish=Finish.stop,
            verdict=Verdict(outcome, None if score != score else score, {k: xs[i] for k, xs in subscores.items()}),
        )  # fmt: skip

    lengths = [2] * len(scores) if lengths is None else lengths
    draw = Draw(0, Prompt("p", (1, 2)), len(scores))
    return Rollout(draw, tuple(sample(i, x, n) for i, (x, n) in enumerate(zip(scores, lengths))))


def _tokens_of(sequences: Segments, chosen: Int[Tensor, " t"]) -> tuple[Int[Tensor, " m"], Segments]:
    """The indices of the chosen samples' tokens, and the division of these tokens into samples."""
    lengths = sequences.lengths
    starts = lengths.cumsum(0) - lengths
    segments = Segments.of(lengths[chosen])
    within = torch.arange(len(segments.index), device=chosen.device)
    within = within - segments.spread(segments.lengths.cumsum(0) - segments.lengths)
    return segments.spread(starts[chosen]) + within, segments


def _regroup(groups: Segments, rollouts: Segments, chosen: Int[Tensor, " t"]) -> tuple[Segments, Segments]:
    """Groups and rollouts of the chosen samples, renumbered without the empty ones."""
    old_groups, index = torch.unique(groups.index[chosen], return_inverse=True)
    old_rollouts, rollout = torch.unique(rollouts.index[old_groups], return_inverse=True)
    return Segments(index, len(old_groups)), Segments(rollout, len(old_rollouts))


def _rows(x: Any, chosen: Int[Tensor, " t"]) -> Any:
    """Select rows of a batch's column, which is a tensor, a mapping of tensors, a tuple, or None."""
    if isinstance(x, Mapping):
        return {name: _rows(column, chosen) for name, column in x.items()}
    if isinstance(x, tuple):
        return tuple(x[i] for i in chosen.tolist())
    return None if x is None else x[chosen]


def _concatenated(xs: Sequence[Any]) -> Any:
    """Concatenate one column of several batches. The first batch decides which entries a mapping has."""
    first = xs[0]
    if isinstance(first, Mapping):
        return {name: _concatenated([x[name] for x in xs]) for name in first}
    if isinstance(first, tuple):
        return tuple(row for x in xs for row in x)
    return None if first is None else torch.cat(list(xs))


def _moved(x: Any, device: torch.device | str) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, Segments):
        return Segments(x.index.to(device), x.count)
    if isinstance(x, Mapping):
        return {k: _moved(v, device) for k, v in x.items()}
    return x
