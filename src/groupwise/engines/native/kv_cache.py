"""Key-value caches of the engine: one for prefilled prompts, one for the sequences that it is generating."""

from collections import OrderedDict

import torch
from torch import Tensor

from groupwise.data import ContextKey
from groupwise.engines.native.attention_layouts import BlocksKeysValues, KeysValues, blocks, transposed


class PrefixCache:
    """Keys and values of prompts, by tokens and the hash of non-text content. Evicts the least recently used first."""

    def __init__(self) -> None:
        self.tokens = 0
        self._entries: OrderedDict[ContextKey, KeysValues] = OrderedDict()
        self.routes: dict[ContextKey, tuple[bytes, ...]] = {}
        """The experts that each token of a context was routed to, if the engine records them."""

    def __contains__(self, context: ContextKey) -> bool:
        return context in self._entries

    def __getitem__(self, context: ContextKey) -> KeysValues:
        self._entries.move_to_end(context)
        return self._entries[context]

    def put(self, context: ContextKey, keys: Tensor, values: Tensor) -> None:
        """Store copies of the tensors: views of them would keep the memory of the whole forward pass alive."""
        n = len(context[1])
        self._entries[context] = keys[:, :, :n].clone(), values[:, :, :n].clone()
        self.tokens += n

    def evict(self, bound: int) -> None:
        """Evict contexts until at most `bound` tokens are cached."""
        while self.tokens > bound:
            context, _ = self._entries.popitem(last=False)
            self.routes.pop(context, None)
            self.tokens -= len(context[1])

    def clear(self) -> None:
        self._entries.clear()
        self.routes.clear()
        self.tokens = 0


class KVCache:
    """Keys and values of the rows being generated, in blocks of positions, as many as the longest row needs."""

    def __init__(self, layers: int, kv: int, d: int, *, bound: int, dtype: torch.dtype, device: torch.device) -> None:
        self.bound = bound
        self.blocks: list[BlocksKeysValues] = []
        self._empty = torch.zeros(layers, 0, kv, 0, d, dtype=dtype, device=device)

    @property
    def tokens(self) -> int:
        """The number of tokens for which memory is allocated."""
        return sum(keys.shape[1] * keys.shape[3] for keys, _ in self.blocks)

    def allocate(self, rows: int, positions: int, running: int) -> None:
        """Allocate memory for `rows` rows of `positions` tokens each; keeps the contents of the first `running` ones.

        Larger blocks stay for later rows while the total is within `bound` tokens. New memory is zero: masked
        attention has weight zero, and zero times NaN would be NaN.
        """
        needed = blocks(positions)
        for at, block in enumerate(needed):
            if at == len(self.blocks):
                self.blocks.append((self._empty, self._empty))
            if self.blocks[at][0].shape[1] < rows:
                self._resize(at, rows, block.stop - block.start, running)
        if self.tokens > self.bound:
            del self.blocks[len(needed) :]
            for at, block in enumerate(needed):
                if self.blocks[at][0].shape[1] > rows:  # a single long row may need more than the bound at every step
                    self._resize(at, rows, block.stop - block.start, running)

    def _resize(self, at: int, rows: int, width: int, running: int) -> None:
        layers, height, kv, old_width, d = self.blocks[at][0].shape
        copied = min(height, running)
        keys = self._empty.new_zeros(layers, rows, kv, width, d)
        values = self._empty.new_zeros(layers, rows, kv, d, width).mT if transposed(keys) else torch.zeros_like(keys)
        for new, old in zip((keys, values), self.blocks[at]):
            new[:, :copied, :, :old_width] = old[:, :copied]
        self.blocks[at] = keys, values

    def write(self, row: int, keys: Tensor, values: Tensor) -> None:
        """Copy a prefilled prompt's keys and values to the start of a row of the cache."""
        for stored, block in zip(self.blocks, blocks(keys.shape[2])):
            for target, source in zip(stored, (keys[:, :, block], values[:, :, block])):
                target[:, row, :, : source.shape[2]] = source

    def copy(self, to: Tensor, source: Tensor, positions: int) -> None:
        """Copy the keys and values at the first `positions` positions from the rows `source` to the rows `to`."""
        for stored, block in zip(self.blocks, blocks(positions)):
            for x in stored:
                x[:, to, :, : positions - block.start] = x[:, source, :, : positions - block.start]

    def clear(self) -> None:
        self.blocks = []
