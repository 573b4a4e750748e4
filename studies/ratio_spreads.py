"""A part that notes how far the ratios of tokens and of sequences spread in the same run. Trials load it by `use`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch


@dataclass(frozen=True, slots=True)
class Spreads:
    """A mask that keeps every token, so the run is that without it.

    Its notes are standard deviations over an iteration's steps: of the log-ratios of `token`s, and of their means per
    `sequence`. `independent` is what the latter would be if the log-ratios in an answer were independent.
    `kurtosis` is the excess kurtosis of the tokens' log-ratios: 0 for normal ones, more with a few tokens far off.
    """

    def __call__(self, batch: Batch) -> Bool[Tensor, " n"]:
        return torch.ones(batch.tokens, dtype=torch.bool, device=batch.length.device)

    def notes(self, step: Batch) -> dict[str, float]:
        """The three standard deviations, and the excess kurtosis."""
        assert step.logp is not None and step.logp_old is not None
        change = (step.logp - step.logp_old).double()
        token, sequence = change.std(correction=0), step.sequences.mean(change).std(correction=0)
        independent = token * (1 / step.length.double()).mean().sqrt()
        fourth = ((change - change.mean()) ** 4).mean()
        return {
            "token": float(token),
            "sequence": float(sequence),
            "independent": float(independent),
            "kurtosis": float(fourth / token**4 - 3) if token > 0 else 0.0,
        }
