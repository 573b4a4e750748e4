"""Measures of a flow policy: numbers per denoising step."""

from dataclasses import dataclass
from typing import ClassVar, Literal

__all__ = ["ForwardProcessLoss", "StepConstantMeasure", "StepKL", "VelocityDifference"]


@dataclass(frozen=True, slots=True)
class StepKL:
    """The exact KL between the Gaussian steps of the policy and of another model, per number of the state.

    `mean (mu - mu_other)^2 / (2 std^2)`, in the graph. The model `policy` is the one that took the step, by the mean
    that the engine recorded.
    """

    in_graph: ClassVar[bool] = True

    model: str


@dataclass(frozen=True, slots=True)
class StepConstantMeasure:
    """A constant of the step: its length `dt` (positive), the standard deviation `std` of its noise, or `sensitivity`.

    The sensitivity is the change of the mean, in units of std, per change of the velocity; 1 for a step without noise.
    """

    step_quantity: Literal["dt", "std", "sensitivity"]


@dataclass(frozen=True, slots=True)
class ForwardProcessLoss:
    """The error of the data that a mixture of velocities predicts, at a step of the forward process, in the graph.

    The velocity is `beta v + (1 - beta) v_other`; with a negative beta it moves away from the policy. The mean square
    error is divided by the mean absolute error, which is a constant and at least 1e-5. DiffusionNFT, arXiv:2509.16117.
    """

    in_graph: ClassVar[bool] = True

    beta: float
    model: str = "old"


@dataclass(frozen=True, slots=True)
class VelocityDifference:
    """The mean square difference between the velocities of the policy and of another model, in the graph."""

    in_graph: ClassVar[bool] = True

    model: str = "reference"
