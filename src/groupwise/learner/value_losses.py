"""Value losses: auxiliary losses that train a value model (critic)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Return, Value
from groupwise.learner.auxiliary import AuxiliaryLoss, AuxiliaryLossInputs, ForwardResult, Term

__all__ = ["ClippedValueLoss", "SquaredValueLoss"]


@dataclass(frozen=True, slots=True)
class SquaredValueLoss(AuxiliaryLoss):
    """`1/2 (V - G)^2` per token, weighted like the objective's tokens; the target `G` is `Return(critic)`.

    With a shared trunk, `coefficient` scales the gradient in the policy's weights: PPO's `c_1`, often 0.1 or 0.5.
    """

    reads_step: ClassVar[bool] = False

    coefficient: float = 1.0
    critic: str = "critic"

    def __post_init__(self) -> None:
        _check_positive(coefficient=self.coefficient)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Return(self.critic)})

    @property
    def metric(self) -> str:
        return loss_metric(self.critic)

    def __call__(self, step: AuxiliaryLossInputs) -> Term:
        def squared(value: Tensor, goal: Tensor, batch: Batch) -> Tensor:
            return (value - goal) ** 2

        return _half_sum(self.critic, squared)


@dataclass(frozen=True, slots=True)
class ClippedValueLoss(AuxiliaryLoss):
    """`1/2 max((V - G)^2, (V_clip - G)^2)` per token, `V_clip = V_old + clip(V - V_old, -clip, clip)`.

    The larger of the two errors: a value that moved further than `clip` towards its return gets no gradient. The value
    loss of PPO's authors, also in TRL and verl. `coefficient` and the shares are as in `SquaredValueLoss`.
    """

    reads_step: ClassVar[bool] = False

    clip: float = 0.2
    coefficient: float = 1.0
    critic: str = "critic"

    def __post_init__(self) -> None:
        _check_positive(clip=self.clip, coefficient=self.coefficient)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Value(self.critic), Return(self.critic)})

    @property
    def metric(self) -> str:
        return loss_metric(self.critic)

    def __call__(self, step: AuxiliaryLossInputs) -> Term:
        def clipped(value: Tensor, goal: Tensor, batch: Batch) -> Tensor:
            old = batch[Value(self.critic)].to(value.dtype)
            near = old + (value - old).clamp(-self.clip, self.clip)
            return ((value - goal) ** 2).maximum((near - goal) ** 2)

        return _half_sum(self.critic, clipped)


def loss_metric(critic: str) -> str:
    """The name of the metric for a critic's loss."""
    return f"value/{critic}/loss"


def _half_sum(critic: str, error: Callable[[Tensor, Tensor, Batch], Tensor]) -> Term:
    """A loss: half the sum of `share * error` over tokens. A token's share has the objective's divisors."""

    def term(forwarded: ForwardResult) -> Float[Tensor, ""]:
        value, batch = forwarded.compute_values(critic), forwarded.batch
        goal = batch[Return(critic)].to(value.dtype)
        return (batch.loss_share.to(value.dtype) * error(value, goal, batch)).sum() / 2

    return term


def _check_positive(**numbers: float) -> None:
    for name, x in numbers.items():
        if not 0 < x < float("inf"):
            raise ValueError(f"{name} is {x}\ntake a {name} above 0, such as 0.2")
