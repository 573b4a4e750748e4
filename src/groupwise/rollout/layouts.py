"""How an engine's tokens see each other: one new token a row, or whole contexts side by side.

On one thread a row's numbers are the same bits whatever its mates, because nothing that is summed depends on them:
matrix products see a multiple of `ROWS` rows, and attention adds up chunks of fixed positions (see `room`), of which
those beyond a row's own end add exactly zero. A library's fused attention does not promise this for different key
lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import Ids
from groupwise.models import attention, past

ROWS = 8
KEYS = 64
WIDE = 64

KeysValues = tuple[Float[Tensor, "layers kv w d"], Float[Tensor, "layers kv w d"]]
RowsKeysValues = tuple[Float[Tensor, "layers _ kv _ d"], Float[Tensor, "layers _ kv _ d"]]
Side = slice | Int[Tensor, " _"]


def padded(n: int, to: int) -> int:
    """The least multiple of `to` that holds n, and at least one.

    >>> padded(0, 16), padded(16, 16), padded(17, 16)
    (16, 16, 32)
    """
    return max(-(-n // to), 1) * to


def room(n: int) -> int:
    """Where the chunk of positions ends that holds the last of n: chunks of `KEYS`, after two of them twice as wide.

    Few wide chunks keep products quick where rows are long, narrow ones at the start keep short rows small.

    >>> room(0), room(64), room(65), room(129), room(300)
    (64, 64, 128, 256, 384)
    """
    return padded(n, KEYS if n <= 2 * KEYS else 2 * KEYS)


def chunks(n: int) -> list[slice]:
    """The chunks that hold n positions.

    >>> chunks(200)
    [slice(0, 64, None), slice(64, 128, None), slice(128, 256, None)]
    """
    ends = [0]
    while ends[-1] < n:
        ends.append(room(ends[-1] + 1))
    return [slice(*pair) for pair in pairwise(ends)]


def shareable(context: int) -> int:
    """How many of a context's tokens rows read in one copy of them: all but the last, which is a row's own to forward.

    Short ones are not worth products of their own.

    >>> shareable(64), shareable(65), shareable(200)
    (0, 64, 199)
    """
    return context - 1 if context > KEYS else 0


def transposed(x: Float[Tensor, "*_ d"]) -> bool:
    """Whether a product has such keys or values first, and values stand along the positions that it sums over.

    Wide heads are read from memory up to three times as fast that way on a CPU; bfloat16 is read more slowly.

    >>> swapped(torch.zeros(3, 128)), swapped(torch.zeros(3, 32)), swapped(torch.zeros(3, 128, dtype=torch.bfloat16))
    (True, False, False)
    """
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.shape[-1] >= WIDE


def side(rows: Sequence[int], device: torch.device) -> Side:
    """Rows as an index: those that stand side by side are read where they lie, not copied."""
    if list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)


@dataclass(frozen=True, slots=True)
class Common:
    """Rows that begin with the same tokens, and the one copy of the keys and values of these.

    The rows are padded to a multiple of `ROWS` with repetitions, so that no product depends on how many there are.
    """

    keys: Float[Tensor, "layers kv w d"]
    values: Float[Tensor, "layers kv w d"]
    many: int
    rows: Side
    asks: Side

    @classmethod
    def of(cls, known: KeysValues, rows: Sequence[int], device: torch.device) -> "Common":
        filled = [*rows, *[rows[-1]] * (padded(len(rows), ROWS) - len(rows))]
        return cls(*known, len(rows), side(rows, device), side(filled, device))

    def look(
        self, layer: int, q: Float[Tensor, "n kv queries d"], first: Int[Tensor, " n"] | None, softcap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For each of the rows: its highest score, and relative to it what it sees and its weight.

        A row sees positions from `first` on (None: all).
        """
        kv, queries = q.shape[1:3]
        asks = q[self.asks].transpose(0, 1).flatten(1, 2)
        score = _capped(asks @ self.keys[layer].mT, softcap)
        if first is not None:
            gone = torch.arange(score.shape[-1], device=q.device) < first[self.asks].repeat_interleave(queries)[:, None]
            score = score.masked_fill(gone, -torch.inf)
        top = score.amax(-1, keepdim=True)
        if first is not None:
            top = top.clamp(min=torch.finfo(top.dtype).min)  # of a row that sees nothing here
        weight = (score - top).exp_()
        found = (top, weight @ self.values[layer], weight.sum(-1, keepdim=True))
        top, seen, total = (x.view(kv, -1, queries, x.shape[-1]).transpose(0, 1)[: self.many] for x in found)
        return top, seen, total


@dataclass(frozen=True, slots=True)
class Decode:
    """One new token a row: it writes its key and value behind the row's own, and sees them all, and what is common.

    Rows beyond the `mask` are padding for the products: they see nothing.
    """

    own: Sequence[RowsKeysValues]
    """By chunks of positions: products read memory that is in one microbatch several times as fast."""
    position: Int[Tensor, " n"]
    place: Int[Tensor, " live"]
    writes: Sequence[tuple[int, Int[Tensor, " _"], Int[Tensor, " _"]]]
    """By chunk: which rows write their token there, and at which of its places."""
    mask: Float[Tensor, "live 1 1 seen"]
    common: Sequence[Common]

    @classmethod
    def of(
        cls,
        own: Sequence[RowsKeysValues],
        position: Int[Tensor, " n"],
        place: Int[Tensor, " live"],
        longest: int,
        common: Sequence[Common] = (),
    ) -> "Decode":
        """Rows stand at `position` of their text, the live ones at `place` of their room; none beyond `longest`."""
        at = torch.arange(room(longest + 1), device=place.device)
        mask = torch.zeros(len(place), len(at), dtype=own[0][0].dtype, device=place.device)
        mask = mask.masked_fill_(at > place[:, None], -torch.inf)[:, None, None]
        writes = []
        for number, c in enumerate(chunks(longest + 1)):
            rows = ((place >= c.start) & (place < c.stop)).nonzero().squeeze(1)
            if len(rows):
                writes.append((number, rows, place[rows] - c.start))
        return cls(own, position, place, writes, mask, common)

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
        n, (kv, d), swap = len(self.place), k.shape[1:], transposed(k)
        for chunk, rows, at in self.writes:
            keys, values = self.own[chunk]
            own = slice(n) if len(rows) == n else rows
            keys[layer][rows, :, at], values[layer][rows, :, at] = k[own], v[own]
        padding = len(q) - n
        q = (q[:n] * d**-0.5).view(n, kv, -1, d)
        microbatches = chunks(self.mask.shape[-1])
        mask, first = self._within(window)
        score = torch.cat([_times(q, keys[layer][:n].mT, swap) for _, (keys, _) in zip(microbatches, self.own)], -1)
        score = _capped(score, softcap) + mask
        top = score.amax(-1, keepdim=True)
        before = [(one.rows, *one.look(layer, q, first, softcap)) for one in self.common]
        for rows, high, _, _ in before:
            top[rows] = torch.maximum(top[rows], high)
        weight = score.sub_(top).exp_()
        seen, total = q.new_zeros(()), q.new_zeros(())
        for c, (_, values) in zip(microbatches, self.own):
            seen = seen + _times(weight[..., c], values[layer][:n], swap)
            total = total + weight[..., c].sum(-1, keepdim=True)
        for rows, high, values, mass in before:
            share = (high - top[rows]).exp()
            seen[rows] += share * values
            total[rows] += share * mass
        return F.pad((seen / total).reshape(n, -1, d), (0, 0, 0, 0, 0, padding))

    def _within(self, window: int | None) -> tuple[Tensor, Tensor | None]:
        """The mask of each row's own room, and the first position it sees, where a window hides any (else None)."""
        if window is None or window >= self.mask.shape[-1] + max((c.keys.shape[2] for c in self.common), default=0):
            return self.mask, None
        at = torch.arange(self.mask.shape[-1], device=self.place.device)
        gone = at <= self.place[:, None] - window
        first = self.position[: len(self.place)] + 1 - window
        return self.mask.masked_fill(gone[:, None, None], -torch.inf), first


@dataclass(frozen=True, slots=True)
class Prefill:
    """Whole contexts side by side, each padded behind its end to a multiple of `ROWS` of its own."""

    tokens: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    widths: tuple[int, ...]
    seen: list[tuple[Float[Tensor, "n kv d"], Float[Tensor, "n kv d"]]]
    """Keys and values, layer by layer, once the decoder has run."""

    @classmethod
    def of(cls, contexts: Sequence[Ids], device: torch.device | str) -> "Prefill":
        widths = tuple(padded(len(c), ROWS) for c in contexts)
        tokens = [t for c, w in zip(contexts, widths) for t in (*c, *(0,) * (w - len(c)))]
        position = [p for w in widths for p in range(w)]
        return cls(torch.tensor(tokens, device=device), torch.tensor(position, device=device), widths, [])

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
        self.seen.append((k, v))
        out = torch.empty_like(q)
        at = 0
        for width, alike in groupby(self.widths):
            own = slice(at, at := at + width * len(list(alike)))
            a, b, c = (x[own].unflatten(0, (-1, width)).transpose(1, 2) for x in (q, k, v))
            see = None if window is None or window >= width else past(width, q.device).triu(1 - window)
            out[own] = attention(a, b, c, see, softcap).transpose(1, 2).flatten(0, 1)
        return out

    def cut(self) -> list[KeysValues]:
        """Keys and values of each context, its padding included."""
        keys, values = (torch.stack(x).transpose(1, 2).split(self.widths, 2) for x in zip(*self.seen))
        return list(zip(keys, values))


def _times(few: Tensor, many: Tensor, swap: bool) -> Tensor:
    """`few @ many`: a row's few queries, or their weights, with its many keys or values."""
    return (many.mT @ few.mT).mT if swap else few @ many


def _capped(score: Tensor, softcap: float | None) -> Tensor:
    return score if softcap is None else softcap * torch.tanh(score / softcap)
