"""How the packed tokens of a piece see each other when equal contexts are forwarded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of similar size, padded to one rectangle: packed indices of what asks, of what is asked, and who sees whom.

    A padded slot repeats its own row's last index, so that nothing foreign can come in through it, not even NaN.
    """

    queries: Int[Tensor, "rows asks"]
    keys: Int[Tensor, "rows sees"]
    mask: Bool[Tensor, "rows 1 asks sees"]

    def attend(
        self,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        window: int | None,
        softcap: float | None,
    ) -> Float[Tensor, "slots heads d"]:
        """Attention of every slot, rows one after the other, padding included."""
        q, k, v = (_gather(x, at).transpose(1, 2) for x, at in ((q, self.queries), (k, self.keys), (v, self.keys)))
        mask = self.mask
        if window is not None and window < mask.shape[-1]:  # who sees m keys sees those at 0 to m - 1
            at = torch.arange(mask.shape[-1], device=mask.device)
            mask = mask & (at >= mask.sum(-1, keepdim=True) - window)
        return attention(q, k, v, mask, softcap).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Samples packed in one dimension, each distinct context once; a sample sees its context and its own past.

    Token `target[j]` (all samples' tokens, in the given order) is predicted by the hidden state of row `source[j]`.
    The last token of a sample predicts nothing and is not forwarded; a sample without tokens leaves no trace.

    >>> shared = Shared.of([(1, 2), (1, 2)], [(7, 8), (9,)])
    >>> shared.tokens, shared.position
    (tensor([1, 2, 7]), tensor([0, 1, 2]))
    >>> shared.source, shared.target
    (tensor([1, 2, 1]), tensor([7, 8, 9]))
    """

    tokens: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    source: Int[Tensor, " m"]
    target: Int[Tensor, " m"]
    blocks: tuple[Block, ...]
    slot: Int[Tensor, " n"]  # where the blocks' output holds each packed token

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
        heads = list(dict.fromkeys(c for c, _ in live))
        tails = [t[:-1] for _, t in live]

        # A row is a stretch of packed tokens that sees itself causally and, before itself, a whole context.
        starts = _starts([*heads, *tails])
        own = dict(zip(heads, starts))
        rows = [(0, 0, start, len(c)) for start, c in zip(starts, heads)]
        rows += [(own[c], len(c), start, len(t)) for (c, _), t, start in zip(live, tails, starts[len(heads) :]) if t]
        blocks, slots = _blocks(torch.tensor(rows, dtype=torch.long).view(-1, 4))
        packed = torch.tensor(list(chain(*heads, *tails)), dtype=torch.long)
        position = list(chain(*(range(seen, seen + length) for _, seen, _, length in rows)))
        source = chain(
            *((own[c] + len(c) - 1, *range(s, s + len(t) - 1)) for (c, t), s in zip(live, starts[len(heads) :]))
        )
        target = chain(*(t for _, t in live))
        return cls(
            tokens=packed.to(device),
            position=torch.tensor(position, dtype=torch.long, device=device),
            source=torch.tensor(list(source), dtype=torch.long, device=device),
            target=torch.tensor(list(target), dtype=torch.long, device=device),
            blocks=tuple(Block(b.queries.to(device), b.keys.to(device), b.mask.to(device)) for b in blocks),
            slot=slots.to(device),
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
        found = [block.attend(q, k, v, window, softcap) for block in self.blocks]
        return _gather(torch.cat([q[:0], *found]), self.slot)


def attention(
    q: Float[Tensor, "rows heads asks d"],
    k: Float[Tensor, "rows kv sees d"],
    v: Float[Tensor, "rows kv sees d"],
    mask: Bool[Tensor, "*rows asks sees"],
    softcap: float | None = None,
) -> Float[Tensor, "rows heads asks d"]:
    """`softmax(q k' / sqrt(d)) v` over what the mask lets each see; with a soft cap c, a score x is `c tanh(x / c)`."""
    grouped = q.shape[1] // k.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped > 1)
    k, v = (x.repeat_interleave(grouped, 1) for x in (k, v))
    score = softcap * torch.tanh(q @ k.mT * (q.shape[-1] ** -0.5 / softcap))
    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def _gather(x: Float[Tensor, "n heads d"], at: Int[Tensor, " *shape"]) -> Float[Tensor, "*shape heads d"]:
    """`x[at]`; but the gradient of that adds in whatever order threads come, and this one's in order."""
    return x.index_select(0, at.flatten()).unflatten(0, at.shape)


def _starts(pieces: Sequence[Sequence[int]]) -> list[int]:
    starts, at = [], 0
    for piece in pieces:
        starts.append(at)
        at += len(piece)
    return starts


def _blocks(rows: Int[Tensor, "rows 4"]) -> tuple[list[Block], Int[Tensor, " n"]]:
    """Rectangles for rows of (context's start, its length, own start, own length), and each packed token's slot."""
    slot = torch.zeros(int(rows[:, 3].sum()), dtype=torch.long)
    blocks, at = [], 0
    for context, seen, start, length in (rows[members].T.unsqueeze(-1) for members in _alike(rows)):
        ask = torch.arange(int(length.max())).minimum(length - 1)  # a padded slot repeats the last of its row
        see = torch.arange(int((seen + length).max())).expand(len(seen), -1)
        mask = see[:, None, None, :] <= (seen + ask)[:, None, :, None]  # key j of a row stands at position j
        inside = see.minimum(seen + length - 1)
        keys = torch.where(inside < seen, context + inside, start + inside - seen)
        blocks.append(Block(queries=start + ask, keys=keys, mask=mask))
        real = torch.arange(ask.shape[1]) < length
        slot[(start + ask)[real]] = at + real.flatten().nonzero().squeeze(1)
        at += real.numel()
    return blocks, slot


def _alike(rows: Int[Tensor, "rows 4"]) -> list[Int[Tensor, " members"]]:
    """Rows in buckets whose sizes differ by less than a factor of two: little padding, few calls."""
    if not len(rows):
        return []
    sizes = torch.stack([rows[:, 3], rows[:, 1] + rows[:, 3]], 1).clamp(min=16)
    _, bucket = torch.log2(sizes.double()).ceil().unique(dim=0, return_inverse=True)
    return [(bucket == b).nonzero().squeeze(1) for b in range(int(bucket.max()) + 1)]
