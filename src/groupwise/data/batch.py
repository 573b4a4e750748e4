"""One table from verdict to gradient, which only gains columns: trainable tokens only, packed, no padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data.measures import Measure
from groupwise.data.sample import Ids, Outcome, Rollout, Sample
from groupwise.data.segments import Segments

__all__ = ["Batch", "key_of", "pack", "rollout_of"]

Memories = Mapping[str, Any]
Key = tuple[int, Ids]

# To a type checker a column is a tensor, so that formulas read as formulas; at run time it is None until written.
Column = TypeVar("Column")
if TYPE_CHECKING:
    Later = Annotated[Column, "None until written"]
else:
    Later = Optional
UNWRITTEN: Any = None

# What each field of a batch has one of: `take`, `keep`, `joined` and `to` follow from it.
PER_SAMPLE, PER_TOKEN, SEGMENTS, PER_RUN = ({"per": unit} for unit in ("sample", "token", "segments", "run"))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """An iteration, a step or a microbatch of samples: the same type.

    Numbers per sample are float64, so statistics of rewards are; log-probs come in the learner's dtype. A column that
    no one has written yet is None; reading it before its time is our mistake, not the user's.

    >>> b = pack([rollout_of([1.0, 0.0], lengths=[2, 1])])
    >>> b.sequences.index.tolist(), b.groups.count, b.score.tolist()
    ([0, 0, 1], 1, [1.0, 0.0])
    """

    samples: tuple[Sample, ...] = field(metadata=PER_SAMPLE)
    keys: tuple[Key, ...] = field(metadata=PER_SAMPLE)
    """Draw and stream of each sample, by which it is found again in its rollout, also in another process."""
    sequences: Segments = field(metadata=SEGMENTS)
    """Tokens in samples."""
    groups: Segments = field(metadata=SEGMENTS)
    """Samples in groups."""
    rollouts: Segments = field(metadata=SEGMENTS)
    """Groups in rollouts."""
    place: Int[Tensor, " n"] = field(metadata=PER_TOKEN)
    """Where each token stands among its sample's tokens."""

    routes: tuple[tuple[bytes, ...], ...] = field(metadata=PER_SAMPLE)
    """The experts of a mixture that its context and tokens went to before the update, as far as they are known."""
    outcome: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    score: Float[Tensor, " s"] = field(metadata=PER_SAMPLE)
    parts: Mapping[str, Float[Tensor, " s"]] = field(default_factory=dict, metadata=PER_SAMPLE)
    length: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """Tokens of the answer, trained or not, also after a mask."""
    finish: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    limit: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """The generation budget in tokens: the only place where parts read it."""
    age: Int[Tensor, " s"] = field(metadata=PER_SAMPLE)
    """Versions between the oldest weights that sampled a token and the policy now."""
    reward: Later[Float[Tensor, " s"]] = field(default=UNWRITTEN, metadata=PER_SAMPLE)

    logp_engine: Float[Tensor, " n"] = field(metadata=PER_TOKEN)
    logp_old: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    advantage: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    share: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    weight: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    logp: Later[Float[Tensor, " n"]] = field(default=UNWRITTEN, metadata=PER_TOKEN)
    measures: Mapping[Measure, Float[Tensor, " n"]] = field(default_factory=dict, metadata=PER_TOKEN)

    memory: Memories = field(default_factory=dict, metadata=PER_RUN)

    def __getitem__(self, measure: Measure) -> Float[Tensor, " n"]:
        return self.measures[measure]

    def __len__(self) -> int:
        """Samples, whether a token of theirs is left or not."""
        return len(self.samples)

    @property
    def tokens(self) -> int:
        """Trainable tokens."""
        return len(self.place)

    @property
    def token_groups(self) -> Segments:
        """Tokens in groups."""
        return self.sequences.then(self.groups)

    def by(self, column: str) -> Segments:
        """Samples by a whole-number column: `batch.by("outcome").mean(lengths)` is the mean length of each outcome."""
        label = getattr(self, column)
        return Segments(label.long(), int(label.max()) + 1 if len(label) else 0)

    def having(self, **columns: Any) -> "Batch":
        """The same samples with columns written; measures are added to those that stand."""
        if "measures" in columns:
            columns["measures"] = {**self.measures, **columns["measures"]}
        return replace(self, **columns)

    def take(self, samples: Sequence[int] | Int[Tensor, " t"]) -> "Batch":
        """These samples in this order with all their columns; groups and rollouts left without a sample are gone."""
        chosen = torch.as_tensor(samples, dtype=torch.long, device=self.place.device)
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
        """Several batches as one; no group or rollout is shared between them."""
        first = batches[0]

        def both(name: str) -> Segments:
            parts: list[Segments] = [getattr(b, name) for b in batches]
            starts = [sum(p.count for p in parts[:i]) for i in range(len(parts))]
            return Segments(torch.cat([p.index + s for p, s in zip(parts, starts)]), sum(p.count for p in parts))

        rows = (*columns("sample"), *columns("token"))
        return replace(
            first,
            sequences=both("sequences"),
            groups=both("groups"),
            rollouts=both("rollouts"),
            **{name: _concatenated([getattr(b, name) for b in batches]) for name in rows},
        )

    def keep(self, which: Bool[Tensor, " n"]) -> "Batch":
        """The same samples without some tokens: they leave ratios and divisors; a sample may be left empty."""
        chosen = which.nonzero().squeeze(1)
        per_token = {name: _rows(getattr(self, name), chosen) for name in columns("token")}
        return replace(self, sequences=self.sequences.keep(which), **per_token)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        names = (f.name for f in fields(self) if f.name not in ("samples", "keys"))
        return replace(self, **{name: _moved(getattr(self, name), device) for name in names})


@cache
def columns(per: Literal["sample", "token", "segments", "run"]) -> tuple[str, ...]:
    """The fields of a batch that have one entry per sample, per token, and so on.

    >>> "reward" in columns("sample"), "logp" in columns("token")
    (True, True)
    """
    return tuple(f.name for f in fields(Batch) if f.metadata["per"] == per)


def pack(rollouts: Sequence[Rollout], *, version: int = 0) -> Batch:
    """The kept samples as one batch on the CPU. Roles that no update names stay in the record.

    `version` is the policy's now; a rollout counts its groups by the `group` of its samples.
    """
    samples: list[Sample] = []
    keys: list[Key] = []
    group_of: list[int] = []
    family_of_group: list[int] = []
    for f, rollout in enumerate(rollouts):
        numbers: dict[int, int] = {}
        for i, sample in enumerate(rollout.samples):
            if sample.role != "answer" or (rollout.selected is not None and not rollout.selected[i]):
                continue
            if sample.group not in numbers:
                numbers[sample.group] = len(family_of_group)
                family_of_group.append(f)
            samples.append(sample)
            keys.append(key_of(rollout, sample))
            group_of.append(numbers[sample.group])
    trained = [[i for i, t in enumerate(s.trained) if t] for s in samples]
    verdicts = [s.verdict for s in samples]
    assert all(v is not None for v in verdicts), "a sample without a verdict cannot be packed"
    names = sorted({name for v in verdicts if v is not None for name in v.parts})
    return Batch(
        samples=tuple(samples),
        keys=tuple(keys),
        sequences=Segments.of([len(t) for t in trained]),
        groups=Segments(torch.tensor(group_of, dtype=torch.long), len(family_of_group)),
        rollouts=Segments(torch.tensor(family_of_group, dtype=torch.long), len(rollouts)),
        place=torch.tensor([i for t in trained for i in t], dtype=torch.long),
        routes=tuple(s.routes for s in samples),
        outcome=torch.tensor([int(v.outcome) for v in verdicts if v], dtype=torch.long),
        score=torch.tensor([v.value for v in verdicts if v], dtype=torch.float64),
        parts={n: torch.tensor([v.parts.get(n, 0.0) for v in verdicts if v], dtype=torch.float64) for n in names},
        length=torch.tensor([len(s.tokens) for s in samples], dtype=torch.long),
        finish=torch.tensor([-1 if s.finish is None else int(s.finish) for s in samples], dtype=torch.long),
        limit=torch.tensor([s.limit for s in samples], dtype=torch.long),
        age=torch.tensor([version - (version if s.oldest is None else s.oldest) for s in samples], dtype=torch.long),
        logp_engine=torch.tensor([s.logp[i] for s, t in zip(samples, trained) for i in t], dtype=torch.float64),
    )


def key_of(rollout: Rollout, sample: Sample) -> Key:
    """The run's number of the sample's draw, and its stream, which no other sample of the draw has."""
    return rollout.draw.id, sample.stream


def rollout_of(scores: Sequence[float], *, lengths: Sequence[int] | None = None, limit: int = 16) -> Rollout:
    """A rollout with these scores and lengths whose token ids and log-probs are arbitrary: for examples and tests.

    A score of 1 is correct, one of NaN unverifiable, any other wrong.
    """
    from groupwise.data.sample import Draw, Finish, Prompt, Verdict

    def sample(i: int, score: float, n: int) -> Sample:
        outcome = Outcome.unverifiable if score != score else Outcome.correct if score == 1 else Outcome.wrong
        return Sample(
            context=(1, 2), stream=(i,), limit=limit, tokens=tuple(3 + (i + t) % 5 for t in range(n)), origin=(0,) * n,
            logp=(-1.0,) * n, finish=Finish.stop, verdict=Verdict(outcome, None if score != score else score),
        )  # fmt: skip

    lengths = [2] * len(scores) if lengths is None else lengths
    draw = Draw(0, Prompt("p", (1, 2)), len(scores))
    return Rollout(draw, tuple(sample(i, x, n) for i, (x, n) in enumerate(zip(scores, lengths))))


def _tokens_of(sequences: Segments, chosen: Int[Tensor, " t"]) -> tuple[Int[Tensor, " m"], Segments]:
    """Where the chosen samples' tokens stand now (samples hold theirs side by side), and their new segments."""
    lengths = sequences.lengths
    starts = lengths.cumsum(0) - lengths
    segments = Segments.of(lengths[chosen])
    within = torch.arange(len(segments.index), device=chosen.device)
    within = within - segments.spread(segments.lengths.cumsum(0) - segments.lengths)
    return segments.spread(starts[chosen]) + within, segments


def _regroup(groups: Segments, rollouts: Segments, chosen: Int[Tensor, " t"]) -> tuple[Segments, Segments]:
    """Groups and rollouts of the chosen samples, renumbered so that only those that still have a sample count."""
    old_groups, index = torch.unique(groups.index[chosen], return_inverse=True)
    old_families, rollout = torch.unique(rollouts.index[old_groups], return_inverse=True)
    return Segments(index, len(old_groups)), Segments(rollout, len(old_families))


def _rows(x: Any, chosen: Int[Tensor, " t"]) -> Any:
    """The chosen rows of a column: of a tensor, of each tensor of a mapping, or of a tuple. None stays None."""
    if isinstance(x, Mapping):
        return {name: _rows(column, chosen) for name, column in x.items()}
    if isinstance(x, tuple):
        return tuple(x[i] for i in chosen.tolist())
    return None if x is None else x[chosen]


def _concatenated(xs: Sequence[Any]) -> Any:
    """Columns of several batches as one; the first batch decides which columns there are."""
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
