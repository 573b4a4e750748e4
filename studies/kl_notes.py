"""A part that notes the KL divergence between engine and learner in a run. Trials load it by `use`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch
from groupwise.objective import comparable


@dataclass(frozen=True, slots=True)
class EngineKL:
    """A mask that keeps every token, so the run is that without it.

    Its note `kl` is the mean over tokens of `log pi_engine - log pi_old`: an unbiased estimate of the KL divergence per
    token of the engine from the learner, if the old log-probs are the learner's. Else it is 0.
    """

    def __call__(self, batch: Batch) -> Bool[Tensor, " n"]:
        return torch.ones(batch.tokens, dtype=torch.bool, device=batch.length.device)

    def notes(self, step: Batch) -> dict[str, float]:
        """The KL divergence per token."""
        assert step.logp_old is not None
        gap = (step.logp_engine.double() - step.logp_old.double())[comparable(step)]
        return {"kl": float(gap.mean())} if len(gap) else {}
