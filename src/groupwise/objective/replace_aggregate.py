"""`AggregateReplacingWeight`: averages the surrogate with another aggregate than the penalties."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Aggregate, Batch, Weight
from groupwise.objective.aggregates import group_token_mean, token_mean

__all__ = ["AggregateReplacingWeight"]


@dataclass(frozen=True, slots=True)
class AggregateReplacingWeight(Weight):
    """The factor that turns the token mean into another aggregate (average over tokens), for the surrogate alone.

    As a weight of an objective with `token_mean`, the surrogate has the other divisor, and the penalties the token
    mean. Both are constants of the whole step, so the loss is exact for any microbatch.
    """

    surrogate_aggregate: Aggregate = group_token_mean

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        return self.surrogate_aggregate(step) / token_mean(step)
