"""A part that notes how far the ratios of tokens and of sequences spread in the same run. Trials load it by `use`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch


@dataclass(frozen=True, slots=True)
class Spreads:
    """A mask that keeps every token, so the run is that without it.

    Its notes are means over an iteration's steps: the standard deviation of the log-ratios of `token`s, their
    `variance`, and the variance of their means over an answer, `between` answers, in which an answer counts with its
    tokens. `dealt` is what the latter would be, on average, if the tokens were dealt at random among the answers.
    `kurtosis` is the excess kurtosis of the tokens' log-ratios: 0 for normal ones, more with a few tokens far off.
    """

    def __call__(self, batch: Batch) -> Bool[Tensor, " n"]:
        return torch.ones(batch.tokens, dtype=torch.bool, device=batch.length.device)

    def notes(self, step: Batch) -> dict[str, float]:
        """The standard deviation, the three variances, and the excess kurtosis."""
        assert step.logp is not None and step.logp_old is not None
        change, answers = (step.logp - step.logp_old).double(), step.sequences
        away = change - change.mean()
        variance, between = (away**2).mean(), (answers.spread(answers.mean(away)) ** 2).mean()
        dealt = variance * (answers.live - 1) / max(step.tokens - 1, 1)
        return {
            "token": float(variance.sqrt()),
            "variance": float(variance),
            "between": float(between),
            "dealt": float(dealt),
            "kurtosis": float((away**4).mean() / variance**2 - 3) if variance > 0 else 0.0,
        }
