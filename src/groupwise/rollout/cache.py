"""What the engine remembers of tokens it has read: the keys and values of live rows and of whole contexts."""

from collections import OrderedDict

import torch
from torch import Tensor

from groupwise.data import Ids
from groupwise.rollout.layouts import KeysValues, RowsKeysValues, chunks, transposed


class PrefixCache:
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
    """Keys and values of live rows in chunks of positions, each as tall as the rows that have come to reach it."""

    def __init__(self, layers: int, kv: int, d: int, *, bound: int, dtype: torch.dtype, device: torch.device) -> None:
        self.bound = bound
        self.chunks: list[RowsKeysValues] = []
        self._none = torch.zeros(layers, 0, kv, 0, d, dtype=dtype, device=device)

    @property
    def tokens(self) -> int:
        """How many tokens there is room for."""
        return sum(keys.shape[1] * keys.shape[3] for keys, _ in self.chunks)

    def grow(self, rows: int, positions: int, live: int) -> None:
        """Make room for `rows` rows of `positions`, of which the first `live` are carried over.

        What is there stays, for rows to come, while the whole keeps within `bound` tokens. Fresh room is zero: what
        attention ignores has weight zero, which must not meet a NaN.
        """
        wanted = chunks(positions)
        for at, chunk in enumerate(wanted):
            if at == len(self.chunks):
                self.chunks.append((self._none, self._none))
            if self.chunks[at][0].shape[1] < rows:
                self._resize(at, rows, chunk.stop - chunk.start, live)
        if self.tokens > self.bound:
            del self.chunks[len(wanted) :]
            for at, chunk in enumerate(wanted):
                if self.chunks[at][0].shape[1] > rows:  # one row alone may need more than the bound, at every token
                    self._resize(at, rows, chunk.stop - chunk.start, live)

    def _resize(self, at: int, rows: int, width: int, live: int) -> None:
        layers, tall, kv, wide, d = self.chunks[at][0].shape
        kept = min(tall, live)
        keys = self._none.new_zeros(layers, rows, kv, width, d)
        values = self._none.new_zeros(layers, rows, kv, d, width).mT if transposed(keys) else torch.zeros_like(keys)
        for new, old in zip((keys, values), self.chunks[at]):
            new[:, :kept, :, :wide] = old[:, :kept]
        self.chunks[at] = keys, values

    def enter(self, row: int, keys: Tensor, values: Tensor) -> None:
        """A row begins with these keys and values."""
        for own, chunk in zip(self.chunks, chunks(keys.shape[2])):
            for x, known in zip(own, (keys[:, :, chunk], values[:, :, chunk])):
                x[:, row, :, : known.shape[2]] = known

    def move(self, to: Tensor, source: Tensor, positions: int) -> None:
        """What rows `source` hold stands in the places `to` as well."""
        for own, chunk in zip(self.chunks, chunks(positions)):
            for x in own:
                x[:, to, :, : positions - chunk.start] = x[:, source, :, : positions - chunk.start]

    def clear(self) -> None:
        self.chunks = []
