"""`Objective`: the loss of a batch, composed of surrogate, weights, penalties and aggregate."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Aggregate, Batch, Penalty, Surrogate, Weight, equal_weight_unit, name_of, one_per_sequence
from groupwise.objective.aggregates import token_mean
from groupwise.objective.surrogates import Clip

__all__ = ["Objective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss: sum over tokens of `share * (penalties - weights * surrogate)`. All divisors are in a token's `share`.

    A step is prepared whole, then forwarded in microbatches whose losses add up to the step's.

    >>> from groupwise.data import rollout_of, pack
    >>> from groupwise.objective import sequence_mean
    >>> step = pack([rollout_of([1.0, 0.0], lengths=[3, 1])]).having(advantage=torch.tensor([1.0, 1.0, 1.0, -1.0]))
    >>> Objective(aggregate=sequence_mean).prepare(step).loss_share
    tensor([0.1667, 0.1667, 0.1667, 0.5000])
    """

    surrogate: Surrogate = Clip()  # noqa: RUF009
    weights: tuple[Weight, ...] = ()
    penalties: tuple[Penalty, ...] = ()
    aggregate: Aggregate = token_mean

    def __post_init__(self) -> None:
        if one_per_sequence(self.surrogate) and equal_weight_unit(self.aggregate) != "sequences":
            ratio = name_of(getattr(self.surrogate, "ratio", self.surrogate))
            raise ValueError(
                f"{ratio} gives a sequence one ratio, and {name_of(self.aggregate)} would weigh that ratio by the "
                "sequence's length\n"
                "use sequence_mean or group_mean, or token_ratio; to weigh it by the length as LUSPO does, use "
                "LengthScaledAggregate; in your own aggregate, set equal_weight_unit = 'sequences'"
            )

    @torch.no_grad()
    def prepare(self, step: Batch) -> Batch:
        """Compute each token's constants, `share` and `weight`, from the whole step, before it is split."""
        weights = (_per_token(w, step) for w in self.weights)
        weight = math.prod(weights, start=torch.ones_like(step.advantage))
        return step.having(loss_share=_per_token(self.aggregate, step), weight=weight)

    def __call__(self, microbatch: Batch) -> Float[Tensor, ""]:
        """The loss of a microbatch, after `prepare`. The losses of all microbatches add up to the step's."""
        gain = microbatch.weight * _per_token(self.surrogate, microbatch)
        cost = sum((_per_token(p, microbatch) for p in self.penalties), start=-gain)
        return (microbatch.loss_share * cost).sum()


def _per_token(part: Callable[[Batch], Tensor], batch: Batch) -> Float[Tensor, " n"]:
    """The output of a component of the loss, checked: one number per token, since other shapes may broadcast."""
    x = part(batch)
    if x.shape != batch.index_in_sample.shape:
        shape = tuple(x.shape)
        raise ValueError(f"{name_of(part)} returned the shape {shape}: needs ({batch.tokens},), one number per token")
    return x
