"""States of methods: numbers that a method updates after each iteration, such as an adaptive KL coefficient."""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.data import Batch, Logp, MethodState, NeededMeasure

__all__ = ["AdaptiveKL"]


@dataclass(frozen=True, slots=True)
class AdaptiveKL(MethodState):
    """The adaptive KL coefficient, which holds the KL near `target`. Ziegler et al., arXiv:1909.08593, section 2.2.

    After an iteration of n samples, `coefficient *= 1 + clip(KL / target_kl - 1, -0.2, 0.2) * n / horizon`. KL is the
    mean over samples of the mean over tokens of `log pi_old - log reference`. The constants are verl's. The schedule
    `StateValue` writes the coefficient into the penalty.

    >>> import torch
    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> logp = torch.zeros(4, dtype=torch.float64)
    >>> batch = batch.having(logp_old=logp, measures={Logp("reference"): logp - 0.11})
    >>> round(AdaptiveKL(start_value=0.5, target_kl=0.1, horizon=10)(0.5, batch, {}), 6)
    0.51
    """

    start_value: float = 0.001
    target_kl: float = 0.1
    horizon: float = 10_000
    model: str = "reference"

    def __post_init__(self) -> None:
        if not (self.start_value > 0 and self.target_kl > 0 and self.horizon > 0):
            raise ValueError(f"{self}: start_value, target_kl and horizon must be above 0")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp("policy"), Logp(self.model)})

    def init(self) -> float:
        return self.start_value

    def __call__(self, state: float, batch: Batch, stats: Mapping[str, float]) -> float:
        k1 = (batch.logp_old - batch[Logp(self.model)]).double()
        live = batch.sequences.lengths > 0
        if not bool(live.any()):
            return state
        kl = float(batch.sequences.mean(k1)[live].mean())
        error = min(max(kl / self.target_kl - 1, -0.2), 0.2)
        return state * (1 + error * len(batch) / self.horizon)
