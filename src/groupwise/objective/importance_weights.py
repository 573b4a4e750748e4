"""Weights: constant factors per token that correct the log-prob gap between engine and learner.

`rho = pi_old / pi_engine`, both at the same weights and temperature, without gradient. A token of weight 0 stays in all
divisors. A written token has no engine log-prob (NaN), and its rho is 1. The gap is a systems error: where rho is 1,
every weight is 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Logp, NeededMeasure, Weight
from groupwise.objective.ratios import MAX_LOG_RATIO

__all__ = [
    "GeometricMaskedImportance",
    "MaskedImportance",
    "SequenceMaskedImportance",
    "SequenceTruncatedImportance",
    "TruncatedImportance",
]

_NEEDS: frozenset[NeededMeasure] = frozenset({Logp("policy")})


@dataclass(frozen=True, slots=True)
class TruncatedImportance(Weight):
    """`min(rho, cap)` per token, with rho = learner / engine probability: truncated importance sampling (TIS).

    "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """

    needs: ClassVar[frozenset[NeededMeasure]] = _NEEDS

    cap: float = 2.0

    def __post_init__(self) -> None:
        _positive(self)

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        return _exp(log_rho(step)).clamp(max=self.cap)

    def notes(self, step: Batch) -> Mapping[str, float]:
        """A metric: the share of tokens whose rho (learner / engine probability) is above the cap."""
        return {"truncated": _share(_exp(log_rho(step)) > self.cap)}


@dataclass(frozen=True, slots=True)
class SequenceTruncatedImportance(Weight):
    """`min(product of a sequence's rho, cap)` on its tokens, with rho = learner / engine probability of a token.

    The products of long answers reach the cap or 0 even where each token's rho is near 1. "When Speed Kills Stability",
    2025.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = _NEEDS

    cap: float = 2.0

    def __post_init__(self) -> None:
        _positive(self)

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s = step.sequences
        return s.spread(_exp(s.total(log_rho(step))).clamp(max=self.cap))

    def notes(self, step: Batch) -> Mapping[str, float]:
        """A metric: the share of trained sequences whose product of ratios is above the cap."""
        s = step.sequences
        return {"truncated": _share(_exp(s.total(log_rho(step)))[s.lengths > 0] > self.cap)}


@dataclass(frozen=True, slots=True)
class MaskedImportance(Weight):
    """`rho` (learner / engine probability) of each token in [floor, cap], else 0. IcePop, arXiv:2510.18855."""

    needs: ClassVar[frozenset[NeededMeasure]] = _NEEDS

    floor: float = 0.5
    cap: float = 5.0

    def __post_init__(self) -> None:
        _check_band(self, self.floor, self.cap)

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        rho = _exp(log_rho(step))
        return torch.where(_inside(rho, self.floor, self.cap), rho, 0.0)

    def notes(self, step: Batch) -> Mapping[str, float]:
        """The share of tokens with weight 0."""
        return {"masked": _share(self(step) == 0)}


@dataclass(frozen=True, slots=True)
class SequenceMaskedImportance(Weight):
    """The product of a sequence's rho (learner / engine probability) on its tokens if within [floor, cap], else 0.

    Sequence-level MIS, "When Speed Kills Stability", 2025.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = _NEEDS

    floor: float = 0.0
    cap: float = 3.0

    def __post_init__(self) -> None:
        _check_band(self, self.floor, self.cap)

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s = step.sequences
        product = _exp(s.total(log_rho(step)))
        return s.spread(torch.where(_inside(product, self.floor, self.cap), product, 0.0))

    def notes(self, step: Batch) -> Mapping[str, float]:
        """The share of tokens with weight 0."""
        return {"masked": _share(self(step) == 0)}


@dataclass(frozen=True, slots=True)
class GeometricMaskedImportance(Weight):
    """rho (learner / engine probability) of each token if its sequence's geometric mean is within bounds, else 0.

    The mean does not depend on the answer's length. `seq-mask-tis` of OpenRLHF.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = _NEEDS

    floor: float = 0.5
    cap: float = 5.0

    def __post_init__(self) -> None:
        _check_band(self, self.floor, self.cap)

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, gap = step.sequences, log_rho(step)
        mean = s.spread(_exp(s.mean(gap)))
        return torch.where(_inside(mean, self.floor, self.cap), _exp(gap), 0.0)

    def notes(self, step: Batch) -> Mapping[str, float]:
        """The share of tokens with weight 0."""
        return {"masked": _share(self(step) == 0)}


def log_rho(step: Batch) -> Float[Tensor, " n"]:
    """`log pi_old - log pi_engine` of each token, without gradient; 0 for a written token."""
    gap = (step.logp_old - step.logp_engine).detach()
    return torch.where(step.logp_engine.isnan(), 0.0, gap)


def _share(which: Tensor) -> float:
    return float(which.double().mean()) if len(which) else 0.0


def _exp(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _positive(part: TruncatedImportance | SequenceTruncatedImportance) -> None:
    if part.cap < 1:
        raise ValueError(f"{part}: needs cap >= 1, so that equal policies have weight 1")


def _check_band(part: Weight, floor: float, cap: float) -> None:
    if not 0 <= floor <= 1 <= cap:
        raise ValueError(f"{part}: needs 0 <= floor <= 1 <= cap, so that equal policies have weight 1")


def _inside(rho: Tensor, floor: float, cap: float) -> Bool[Tensor, "..."]:
    return (rho >= floor) & (rho <= cap)
