"""Gates: masks that choose between two surrogates for each token (see `Routed`)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Couples, Mask, Ratio, mask
from groupwise.objective.ratios import token_ratio

__all__ = ["HasView", "InsideClip", "OnPolicy", "positive_advantage", "written_tokens"]


@dataclass(frozen=True, slots=True)
class PositiveAdvantage(Mask):
    """Selects the tokens with `A > 0`: with binary rewards, correct answers in groups that also have wrong ones."""

    name: ClassVar[str] = "positive_advantage"
    reads_advantage: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        return b.advantage > 0


positive_advantage = PositiveAdvantage()


@mask
def written_tokens(b: Batch) -> Bool[Tensor, " n"]:
    """Selects the trained tokens that were written, not sampled: demonstrations, hints, corrections."""
    return b.logp_engine.isnan()


@dataclass(frozen=True, slots=True)
class InsideClip(Mask):
    """Selects the tokens that PPO's clip does not cut: a ratio up to `1 + high` (A > 0) or from `1 - low` on (A < 0).

    As a gate of `ClippedWeight` it is the unified token mask of CISPO, arXiv:2506.13585, equation 7.
    """

    reads_advantage: ClassVar[bool] = True

    low: float = 0.2
    high: float = 0.2
    ratio: Ratio = token_ratio

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        r, a = self.ratio(b).detach(), b.advantage
        return ~(((a > 0) & (r > 1 + self.high)) | ((a < 0) & (r < 1 - self.low)))


@dataclass(frozen=True, slots=True)
class OnPolicy(Mask):
    """Leaves out tokens with A < 0 in answers that are off-policy: mean `log pi_engine - log pi` above `delta`.

    The off-policy sequence mask of DeepSeek-V3.2, arXiv:2512.02556. `log pi` is the current policy's, without gradient.
    Written tokens have no engine log-prob and count as 0.
    """

    couples: ClassVar[Couples] = "sequence"
    reads_advantage: ClassVar[bool] = True

    delta: float = 0.1

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        s = b.sequences
        drift = s.spread(s.mean(_drift(b)))
        return ~((b.advantage < 0) & (drift > self.delta))


@dataclass(frozen=True, slots=True)
class HasView(Mask):
    """Selects the tokens of answers that have a view: a second prompt for the same tokens, such as one with a hint."""

    not_stored: ClassVar[str] = "the other prompts of a sample"

    view: str

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        has = torch.tensor([self.view in s.views for s in b.samples], dtype=torch.bool, device=b.place.device)
        return b.sequences.spread(has)


def _drift(b: Batch) -> Float[Tensor, " n"]:
    return torch.where(written_tokens(b), 0.0, b.logp_engine - b.logp.detach())
