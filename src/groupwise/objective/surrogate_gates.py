"""Gates: masks that choose between two surrogates for each token (see `GatedSurrogate`)."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Mask, mask

__all__ = ["positive_advantage", "written_tokens"]


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
