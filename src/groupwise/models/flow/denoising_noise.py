"""The noise of a denoising step: mean and standard deviation of the next state, given the velocity.

Times run from 1 (noise) to 0 (data): `x_t = (1 - t) data + t noise`, and the velocity is `noise - data`. A stochastic
step has the marginals of the deterministic one, and a density. `dt = then - now` is negative.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

__all__ = ["CoefficientsPreservingNoise", "DanceGrpoNoise", "DenoisingNoise", "FlowGrpoNoise", "IntegratedNoise"]

TokenStates = Float[Tensor, " n *state"]
Times = Float[Tensor, " n"]
NEAR_ONE = 0.997
"""The largest time in the integral of `IntegratedNoise`, which diverges at 1. SAGE-GRPO's code."""


@runtime_checkable
class DenoisingNoise(Protocol):
    """Mean [n, *state] and standard deviation [n] of the states at the times `then`, given states and velocities.

    A level of 0 is the deterministic step.
    """

    __slots__ = ()

    noise_level: float

    @abstractmethod
    def __call__(
        self, x: TokenStates, velocity: TokenStates, now: Times, then: Times, /
    ) -> tuple[TokenStates, Times]: ...


@dataclass(frozen=True, slots=True)
class FlowGrpoNoise(DenoisingNoise):
    """Flow-GRPO's SDE noise: variance `s^2 |dt|` with `s = level sqrt(t / (1 - t))`. arXiv:2505.05470.

    At t = 1, the 1 - t is taken at the next time.
    """

    noise_level: float = 0.7

    def __post_init__(self) -> None:
        check_level(self.noise_level)

    def __call__(self, x: TokenStates, velocity: TokenStates, now: Times, then: Times) -> tuple[TokenStates, Times]:
        s = self.noise_level * (now / (1 - torch.where(now < 1, now, then))).sqrt()
        return drifted(x, velocity, now, then, s * (now - then).sqrt())


@dataclass(frozen=True, slots=True)
class DanceGrpoNoise(DenoisingNoise):
    """DanceGRPO's noise: variance `level^2 |dt|` at all times. arXiv:2505.07818."""

    noise_level: float = 0.3

    def __post_init__(self) -> None:
        check_level(self.noise_level)

    def __call__(self, x: TokenStates, velocity: TokenStates, now: Times, then: Times) -> tuple[TokenStates, Times]:
        return drifted(x, velocity, now, then, self.noise_level * (now - then).sqrt())


@dataclass(frozen=True, slots=True)
class IntegratedNoise(DenoisingNoise):
    """SAGE-GRPO's noise: variance `level^2` times the integral of `s / (1 - s)` over the step. arXiv:2603.21872.

    It is smaller than `FlowGrpoNoise` away from t = 1, where that takes the larger end of the step.
    """

    noise_level: float = 1.0

    def __post_init__(self) -> None:
        check_level(self.noise_level)

    def __call__(self, x: TokenStates, velocity: TokenStates, now: Times, then: Times) -> tuple[TokenStates, Times]:
        integral = (then - now) + ((1 - then) / (1 - now.clamp(max=NEAR_ONE))).log()
        return drifted(x, velocity, now, then, self.noise_level * integral.clamp(min=0).sqrt())


@dataclass(frozen=True, slots=True)
class CoefficientsPreservingNoise(DenoisingNoise):
    """Part of the noise is drawn again: `std = then sin(noise_level pi / 2)`, and the rest of it keeps the coefficient.

    Coefficients-preserving sampling, as in the code of Flow-GRPO. The marginals equal the flow's where the
    velocity belongs to one datum; else their spread is smaller.
    """

    noise_level: float = 0.7

    def __post_init__(self) -> None:
        check_level(self.noise_level, most=1.0)

    def __call__(self, x: TokenStates, velocity: TokenStates, now: Times, then: Times) -> tuple[TokenStates, Times]:
        std = then * math.sin(self.noise_level * math.pi / 2)
        data, noise = x - wide(now, x) * velocity, x + wide(1 - now, x) * velocity
        return wide(1 - then, x) * data + wide((then**2 - std**2).sqrt(), x) * noise, std


def check_level(level: float, most: float = math.inf) -> None:
    """ValueError for a negative or too large level of noise."""
    if not 0 <= level <= most:
        bounds = "at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise ValueError(f"noise_level is {level}\nuse a number {bounds}; 0 is the deterministic step")


def drifted(x: TokenStates, velocity: TokenStates, now: Times, then: Times, std: Times) -> tuple[TokenStates, Times]:
    """The step whose marginals equal the flow's: `x + v dt + std^2 / 2 * score`, and `std`.

    The score of the marginal is `-(x + (1 - t) v) / t`.
    """
    score = -(x + wide(1 - now, x) * velocity) / wide(now, x)
    return euler(x, velocity, now, then) + wide(std**2 / 2, x) * score, std


def euler(x: TokenStates, velocity: TokenStates, now: Times, then: Times) -> TokenStates:
    """The deterministic step `x + v dt`."""
    return x + velocity * wide(then - now, x)


def wide(values: Shaped[Tensor, " n"], like: TokenStates) -> Shaped[Tensor, " n *ones"]:
    """One number per row, shaped to multiply states."""
    return values.view(-1, *(1,) * (like.dim() - 1))
