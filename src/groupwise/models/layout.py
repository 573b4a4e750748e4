"""How the packed tokens of a piece see each other when what samples have in common is forwarded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.models.packed_attention import Block, Merged

__all__ = ["Shared"]

LEAST = 16
"""Rows of no more tokens than this are all of one size."""

LONG = 64
"""A context of more tokens than this is asked once for all answers: for shorter ones that does not pay."""

Text = tuple[int, ...]
Row = tuple[list[int], int]
"""Packed places of a text from its first token on, and how many of the last of them are the row's own."""
Blocks = tuple[list[Block], Int[Tensor, " n"]]
"""Rectangles for rows, and where in their output each packed token stands."""


@dataclass(frozen=True, eq=False)
class Shared:
    """Samples packed in one dimension, what they begin with in common once: whole contexts, then answers as a tree.

    A sample sees its context and its own past. Token `target[j]` (all samples' tokens, in the given order) is predicted
    by the hidden state of row `source[j]`. The last token of a sample predicts nothing and is not forwarded; a sample
    without tokens leaves no trace.

    >>> shared = Shared.of([(1, 2), (1, 2), (1, 2)], [(7, 8), (9,), (7, 6, 5)])
    >>> shared.tokens, shared.position
    (tensor([1, 2, 7, 6]), tensor([0, 1, 2, 3]))
    >>> shared.source, shared.target
    (tensor([1, 2, 1, 1, 2, 3]), tensor([7, 8, 9, 7, 6, 5]))
    """

    tokens: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    source: Int[Tensor, " m"]
    target: Int[Tensor, " m"]
    rows: Sequence[Row]

    @classmethod
    def of(
        cls,
        contexts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        *,
        device: torch.device | str = "cpu",
    ) -> "Shared":
        """The layout of `tokens[i]` after `contexts[i]`. ValueError for an empty context."""
        if len(contexts) != len(tokens):
            raise ValueError(f"{len(contexts)} contexts for {len(tokens)} samples: each sample needs its own")
        if not all(map(len, contexts)):
            raise ValueError("a context is empty: the first token of an answer needs one that it follows")
        live = [(tuple(c), tuple(t)) for c, t in zip(contexts, tokens) if len(t)]
        packed, paths, rows = _packed([(c, t[:-1]) for c, t in live])
        position = chain(*(range(len(path) - own, len(path)) for path, own in rows))
        source = chain(*(path[len(c) - 1 :] for (c, _), path in zip(live, paths)))
        target = chain(*(t for _, t in live))
        return cls(
            tokens=torch.tensor(packed, dtype=torch.long, device=device),
            position=torch.tensor(list(position), dtype=torch.long, device=device),
            source=torch.tensor(list(source), dtype=torch.long, device=device),
            target=torch.tensor(list(target), dtype=torch.long, device=device),
            rows=rows,
        )

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "n heads d"]:
        """Scaled dot-product attention of every packed token over what it may see."""
        fused = q.device.type == "cpu" and window is None and softcap is None
        if fused and self._parts:
            (blocks, slot), common = self._parts
            return Merged.apply(q, k, v, blocks, slot, common)
        blocks, slot = self._whole
        found = [block.attend(q, k, v, window, softcap) for block in blocks]
        return torch.cat([q[:0], *found]).index_select(0, slot)

    @cached_property
    def _whole(self) -> Blocks:
        """Each row with all that it sees."""
        return _blocks(self.rows, self.position.device)

    @cached_property
    def _parts(self) -> tuple[Blocks, list[Block]] | None:
        """Rows without the long contexts before them, and who asks each of these. None: no context is long."""
        rows, asked = _split(self.rows)
        common = [Block(torch.tensor([asks]), torch.tensor([keys])) for asks, keys in asked]
        return (_blocks(rows, self.position.device), common) if common else None


def _packed(texts: Sequence[tuple[Text, Text]]) -> tuple[list[int], list[list[int]], list[Row]]:
    """Tokens of (context, what follows it) packed, the places of each whole text among them, and their rows.

    A text repeats nothing of the one before it in the order of contexts and tokens: there nobody begins more alike.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    same = [0] * len(texts)
    for before, after in pairwise(order):
        (context, tail), (other, longer) = texts[before], texts[after]
        if context == other:
            same[after] = next((i for i, (a, b) in enumerate(zip(tail, longer)) if a != b), len(tail))
    contexts = list(dict.fromkeys(context for context, _ in texts))
    own = [*contexts, *(tail[known:] for (_, tail), known in zip(texts, same))]
    places = [list(range(*ends)) for ends in pairwise(accumulate(map(len, own), initial=0))]
    newest, paths = dict(zip(contexts, places)), [[]] * len(texts)
    for i in order:
        context = texts[i][0]
        newest[context] = paths[i] = newest[context][: len(context) + same[i]] + places[len(contexts) + i]
    rows = [(path, len(piece)) for path, piece in zip([*places[: len(contexts)], *paths], own) if piece]
    return list(chain(*own)), paths, rows


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[list[int], list[int]]]]:
    """Rows cut behind long contexts, and for each of these who asks it, and its places."""
    contexts = {path[0]: path for path, own in rows if own == len(path)}  # which alone are all their own
    asks: dict[int, list[int]] = {}
    short = []
    for path, own in rows:
        known = len(contexts[path[0]])
        if own < len(path) and known > LONG:
            asks.setdefault(path[0], []).extend(path[-own:])
            path = path[known:]
        short.append((path, own))
    return short, [(who, contexts[first]) for first, who in asks.items()]


def _blocks(rows: Sequence[Row], device: torch.device) -> Blocks:
    """Rows of similar size in one block each. By NumPy, quicker with small arrays."""
    slot = np.zeros(sum(own for _, own in rows), np.int64)
    blocks, at = [], 0
    for members in _alike(rows):
        wide = max(len(path) for path, _ in members)
        keys = np.array([path + path[-1:] * (wide - len(path)) for path, _ in members])
        size = np.array([[len(path), own] for path, own in members])
        first, own = size[:, :1] - size[:, 1:], size[:, 1:]
        ask = np.minimum(np.arange(own.max()), own - 1)  # a padded slot repeats the last of its row
        queries = np.take_along_axis(keys, first + ask, 1)
        mask = None
        if first.any():
            mask = torch.from_numpy(np.arange(wide) <= (first + ask)[:, None, :, None])  # key j stands at position j
        blocks.append(Block(torch.from_numpy(queries), torch.from_numpy(keys), mask, causal=mask is None).to(device))
        real = np.arange(ask.shape[1]) < own
        slot[queries[real]] = at + np.flatnonzero(real)
        at += real.size
    return blocks, torch.from_numpy(slot).to(device)


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in buckets whose sizes differ by less than a factor of two: little padding, few calls."""
    buckets: dict[tuple[int, int], list[Row]] = {}
    for path, own in rows:
        size = (max(own, LEAST) - 1).bit_length(), (max(len(path), LEAST) - 1).bit_length()
        buckets.setdefault(size, []).append((path, own))
    return [buckets[size] for size in sorted(buckets)]
