"""`TextureWeightedReward`: a reward from several scores of a picture, weighted by its texture."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Shaping, Subscore

__all__ = ["TextureWeightedReward"]


@dataclass(frozen=True, slots=True)
class TextureWeightedReward(Shaping):
    """The reward `(1 - d) m(fidelity_subscore) + d mean m(quality_subscores)`, with d the `texture_subscore`. GDPO-SR.

    m scales a subscore to 0 (least of the group) .. 1 (largest); it is 0 where all are equal. `texture_subscore` is the
    share of the picture with texture: a smooth picture is judged by its fidelity. arXiv:2603.16769.

    >>> from groupwise.data import rollout_of, pack
    >>> parts = {"texture": [0.75] * 3, "psnr": [24.0, 25.0, 26.0], "sharpness": [0.6, 0.5, 0.4]}
    >>> batch = pack([rollout_of([0.0] * 3, subscores=parts)])
    >>> reward = TextureWeightedReward(fidelity_subscore="psnr", quality_subscores=("sharpness",))
    >>> reward(batch.verdict_score, batch).tolist()
    [0.75, 0.5, 0.25]
    """

    fidelity_subscore: str = "fidelity"
    quality_subscores: tuple[str, ...] = ("quality",)
    texture_subscore: str = "texture"

    def __post_init__(self) -> None:
        if not self.quality_subscores:
            raise ValueError(f"{self}: needs at least one part in quality_subscores")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset(map(Subscore, (self.fidelity_subscore, *self.quality_subscores, self.texture_subscore)))

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        quality = torch.stack([in_range(b, name) for name in self.quality_subscores]).mean(0)
        return in_range(b, self.fidelity_subscore).lerp(quality, b[Subscore(self.texture_subscore)])


def in_range(b: Batch, part: str) -> Float[Tensor, " s"]:
    """A subscore, scaled to 0 .. 1 within each group; 0 in a group of equal values."""
    x, g = b[Subscore(part)], b.groups
    least, most = -g.largest(-x), g.largest(x)
    width = g.spread(most - least)
    return (x - g.spread(least)) / width.masked_fill(width == 0, 1.0)
