"""Units that an objective keeps whole, and surrogates that are composed of parts with different units."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from groupwise.data import Batch, Mask, Surrogate, UnsplitUnit, one_per_sequence, unsplit_unit
from groupwise.learner import make_plan
from groupwise.objective import Clip, Objective, UnclippedSurrogate, sequence_mean, sequence_ratio, token_mean
from tests.laws.batches import step_of


@dataclass(frozen=True)
class OnPolicy:
    """A user's gate: tokens of sequences whose mean log-ratio is small."""

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"

    bound: float = 0.1

    def __call__(self, b: Batch) -> Tensor:
        s = b.sequences
        return s.spread(s.mean((b.logp - b.logp_old).detach()).abs() < self.bound)


@dataclass(frozen=True)
class Routed:
    """A user's surrogate that takes one of two surrogates per token."""

    which: Mask
    then: Surrogate
    otherwise: Surrogate

    def __call__(self, b: Batch) -> Tensor:
        return torch.where(self.which(b), self.then(b), self.otherwise(b))


def test_a_gate_on_sequences_with_token_ratios_takes_any_aggregate() -> None:
    surrogate = Routed(OnPolicy(), Clip(), UnclippedSurrogate())
    assert unsplit_unit(surrogate) == "sequence" and not one_per_sequence(surrogate)
    objective = Objective(surrogate=surrogate, aggregate=token_mean)
    step = objective.prepare(step_of([[2, 3], [4]]))
    assert objective(step).isfinite()
    with pytest.raises(ValueError, match="gives a sequence one ratio"):
        Objective(surrogate=Routed(OnPolicy(), Clip(ratio=sequence_ratio), Clip()), aggregate=token_mean)
    Objective(surrogate=Routed(OnPolicy(), Clip(ratio=sequence_ratio), Clip()), aggregate=sequence_mean)


@dataclass(frozen=True)
class DriftHinge:
    """A user's penalty on the mean drift of the whole step: `max(drift - delta, 0)` on each token."""

    unsplit_unit: ClassVar[UnsplitUnit] = "step"

    delta: float = 0.0

    def __call__(self, b: Batch) -> Tensor:
        drift = (b.loss_share * (b.logp_old - b.logp)).sum()
        return (drift - self.delta).clamp(min=0).expand(b.tokens) * b.tokens


def test_a_step_that_is_coupled_is_one_microbatch() -> None:
    objective = Objective(penalties=(DriftHinge(),))
    assert unsplit_unit(objective) == "step"
    batch = step_of([[3, 5, 2], [4, 1], [6, 6]], seed=3)
    for shuffle in ("prompts", "samples"):
        arguments = {"size": 2, "shuffle": shuffle, "permutation": range, "microbatch_tokens": 5}
        steps = make_plan(batch, unsplit_unit=unsplit_unit(objective), **arguments)
        assert [len(step.microbatches) for step in steps] == [1, 1]
        assert sorted(i for step in steps for i in step.samples) == list(range(len(batch)))
        assert max(len(step.microbatches) for step in make_plan(batch, **arguments)) > 1


def test_the_coupled_penalty_is_not_a_sum_over_microbatches() -> None:
    objective = Objective(penalties=(DriftHinge(),))
    step = objective.prepare(step_of([[3, 5, 2], [4, 1], [6, 6]], seed=3))
    pieces = sum(float(objective(step.take([i])).detach()) for i in range(len(step)))
    assert pieces != pytest.approx(float(objective(step).detach()), rel=1e-3)
