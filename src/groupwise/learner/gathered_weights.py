"""The policy's weights on rank 0 of sharded ranks, without a whole model: layer after layer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from groupwise.data import Ids

__all__ = ["GatheredWeights"]

LAYER = re.compile(r".*\.layers\.\d+\.")
"""The begin of the names of a layer's weights."""


class GatheredWeights(Mapping[str, Tensor]):
    """Whole weights that are gathered from all ranks when they are looked up. Only the last layer is kept.

    `outline` has the tensors on the meta device. `gather` returns the weights of some names, `score` the log-probs of
    tokens after a context: each is a message to the other ranks, which must wait for one.
    """

    def __init__(
        self,
        outline: Mapping[str, Tensor],
        gather: Callable[[Sequence[str]], Mapping[str, Tensor]],
        score: Callable[[Ids, Ids], tuple[float, ...]],
    ) -> None:
        self.outline, self.score, self._gather = outline, score, gather
        self._layers: dict[str, list[str]] = {}
        for name in outline:
            self._layers.setdefault(layer_of(name), []).append(name)
        self._kept: Mapping[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._kept:
            self._kept = {}
            self._kept = self._gather(self._layers[layer_of(name)])
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outline)

    def __len__(self) -> int:
        return len(self.outline)


def layer_of(name: str) -> str:
    """The layer of a weight: the begin of its name, or the name itself outside of layers.

    >>> layer_of("model.layers.10.mlp.up_proj.weight"), layer_of("lm_head.weight")
    ('model.layers.10.', 'lm_head.weight')
    """
    found = LAYER.match(name)
    return found.group() if found else name
