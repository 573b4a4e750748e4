"""Whole weights of a decoder of which memory holds one layer at a time."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import Tensor

__all__ = ["LayerWeights"]

LAYER = re.compile(r".*\.layers\.\d+\.")
"""The begin of the names of a layer's weights."""


class LayerWeights(Mapping[str, Tensor]):
    """Whole weights that are read when they are looked up, the weights of a layer together. Only the last are kept.

    `outline` has the names, dtypes and shapes, on the meta device. `read` returns the weights of some names, which are
    those of one layer.
    """

    def __init__(self, outline: Mapping[str, Tensor], read: Callable[[Sequence[str]], Mapping[str, Tensor]]) -> None:
        self.outline, self.read = {name: x.detach().to("meta") for name, x in outline.items()}, read
        self._layers: dict[str, list[str]] = {}
        for name in self.outline:
            self._layers.setdefault(layer_of(name), []).append(name)
        self._kept: Mapping[str, Tensor] = {}

    def only(self, names: Collection[str]) -> "LayerWeights":
        """The weights of these names: no other ones are read."""
        return LayerWeights({name: x for name, x in self.outline.items() if name in names}, self.read)

    def converted(self, convert: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> "LayerWeights":
        """The weights after `convert`, whose results are weights of the layers of its arguments."""

        def read(names: Sequence[str]) -> Mapping[str, Tensor]:
            return convert(self.read(self._layers[layer_of(names[0])]))

        return LayerWeights(convert(self.outline), read)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._kept:
            self._kept = {}
            self._kept = self.read(self._layers[layer_of(name)])
        return self._kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self.outline

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


def outline_of(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The dtypes and shapes of weights: the tensors themselves, or those on the meta device if they are not read."""
    return weights.outline if isinstance(weights, LayerWeights) else weights
