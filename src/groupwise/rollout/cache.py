"""What the engine remembers of tokens it has read: the keys and values of live rows and of whole contexts."""

from collections import OrderedDict

import torch
from torch import Tensor

from groupwise.data import Ids
from groupwise.rollout.layouts import KeysValues, room


class Prefixes:
    """Keys and values of contexts, found by equality of tokens; those longest unused leave first."""

    def __init__(self) -> None:
        self.tokens = 0
        self._held: OrderedDict[Ids, KeysValues] = OrderedDict()
        self.routes: dict[Ids, tuple[bytes, ...]] = {}
        """The experts that a context's tokens went to, where that is written down."""

    def __contains__(self, context: Ids) -> bool:
        return context in self._held

    def __getitem__(self, context: Ids) -> KeysValues:
        self._held.move_to_end(context)
        return self._held[context]

    def put(self, context: Ids, keys: Tensor, values: Tensor) -> None:
        """Kept as clones: views would keep the whole pack that they were computed in."""
        self._held[context] = keys[:, :, : len(context)].clone(), values[:, :, : len(context)].clone()
        self.tokens += len(context)

    def trim(self, bound: int) -> None:
        """Forget until at most `bound` tokens are held."""
        while self.tokens > bound:
            context, _ = self._held.popitem(last=False)
            self.routes.pop(context, None)
            self.tokens -= len(context)

    def clear(self) -> None:
        self._held.clear()
        self.routes.clear()
        self.tokens = 0


class RowCache:
    """Keys and values of live rows, in two rectangles that grow with the rows and with the longest of them."""

    def __init__(self, layers: int, kv: int, d: int, *, bound: int, dtype: torch.dtype, device: torch.device) -> None:
        self.bound = bound
        self.keys = torch.zeros(layers, 0, kv, 0, d, dtype=dtype, device=device)
        self.values = self.keys.clone()

    def grow(self, rows: int, positions: int, live: int, reach: int) -> None:
        """Make room for `rows` rows of `positions`, of which the first `live` are carried over.

        Positions double, but never beyond `reach`, which no row comes to need more than, while that keeps within
        `bound` tokens. Fresh room is zero: what attention ignores has weight zero, which must not meet a NaN.
        """
        layers, tall, kv, wide, d = self.keys.shape
        if rows <= tall and positions <= wide:
            return
        size = (rows, wide) if positions <= wide else (rows, min(max(room(positions), 2 * wide), reach))
        if size[0] * size[1] > self.bound:
            size = rows, room(positions)
        kept = slice(min(wide, size[1]))
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(layers, size[0], kv, size[1], d)
            new[:, :live, :, kept] = old[:, :live, :, kept]
            setattr(self, name, new)

    def enter(self, row: int, keys: Tensor, values: Tensor) -> None:
        """A row begins with these keys and values."""
        self.keys[:, row, :, : keys.shape[2]] = keys
        self.values[:, row, :, : keys.shape[2]] = values

    def move(self, to: Tensor, source: Tensor, positions: int) -> None:
        """What rows `source` hold stands in the places `to` as well."""
        for x in (self.keys, self.values):
            x[:, to, :, :positions] = x[:, source, :, :positions]

    def clear(self) -> None:
        self.keys = self.keys.new_zeros(*self.keys.shape[:1], 0, self.keys.shape[2], 0, self.keys.shape[4])
        self.values = self.keys.clone()
