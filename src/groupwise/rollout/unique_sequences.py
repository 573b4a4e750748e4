"""The texts that an engine is writing, each once for all rows that agree on it so far: what one forward takes."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import Ids
from groupwise.models import Model, Routes
from groupwise.rollout.cache import RowCache
from groupwise.rollout.layouts import ROWS, Common, Decode, KeysValues, padded, shareable


class UniqueSequences:
    """Texts that differ, side by side: 0 to n, without holes, so that no product is spent on what rows share.

    Each row of the engine knows its stem's number. That a row's numbers do not depend on its mates (see `layouts`)
    makes one forward for all rows of a stem the same to the bit as one for each.
    """

    def __init__(self, decoder: Model, *, most: int, cache_tokens: int) -> None:
        self.decoder = decoder
        shape, weight = decoder.shape, next(decoder.parameters())
        self.cache = RowCache(
            shape.layers, shape.kv_heads, shape.head_dim,
            bound=cache_tokens, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip
        self.token, self.position, self.place = torch.zeros(3, padded(most, ROWS), dtype=torch.long).to(weight.device)
        self.begins: list[KeysValues | None] = []
        self._common: list[Common] | None = None

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def longest(self) -> int:
        """The furthest place of its own that a stem's next token takes."""
        return int(self.place[: len(self)].max()) if len(self) else 0

    @property
    def common(self) -> list[Common]:
        """The stems by the beginning that they read in common."""
        if self._common is None:
            alike: dict[int, tuple[KeysValues, list[int]]] = {}
            for row, known in enumerate(self.begins):
                if known is not None:
                    alike.setdefault(id(known[0]), (known, []))[1].append(row)
            self._common = [Common.of(known, rows, self.token.device) for known, rows in alike.values()]
        return self._common

    def grow(self, rows: int, positions: int) -> None:
        """Make room for as many stems as there are rows, of so many positions."""
        self.cache.grow(padded(rows, ROWS), positions, len(self))

    def enter(self, context: Ids, known: KeysValues | None) -> int:
        """The number of a new text. `known` is all of it but its last token, which is read next."""
        new, common = len(self), shareable(len(context))
        self.token[new], self.position[new], self.place[new] = context[-1], len(context) - 1, len(context) - 1 - common
        if known is not None:
            self.cache.enter(new, *(x[:, :, common:] for x in known))
        self.begins.append((known[0][:, :, :common], known[1][:, :, :common]) if known is not None and common else None)
        self._common = None
        return new

    def forward(self, routes: Routes | None = None) -> Float[Tensor, "padded v"]:
        """Logits after each stem's newest token, which now belongs to what it remembers; `routes` are written there."""
        n, longest = len(self), self.longest
        full = padded(n, ROWS)
        layout = Decode.of(self.cache.chunks, self.position[:full], self.place[:n], longest, self.common)
        told = {"routes": routes} if routes else {}
        logits = self.decoder.head(self.decoder(self.token[:full], layout, **told))
        self.position[:n] += 1
        self.place[:n] += 1
        return logits

    def part(self, stem: Int[Tensor, " rows"], token: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """The number of each row's stem from now on: rows of one go on together where their newest tokens are equal.

        The first of those who part keeps the place, others copy it; a stem that no row is on makes room.
        """
        n, vocabulary = len(self), self.decoder.shape.vocabulary
        pairs, of = (stem * vocabulary + token).unique(return_inverse=True)
        source, count = pairs // vocabulary, len(pairs)
        stays = (source < count) & (source != F.pad(source, (1, 0), value=-1)[:count])
        free = torch.ones_like(stays)
        free[source[stays]] = False
        to, moved = free.nonzero().squeeze(1), source[~stays]
        number = source.masked_scatter(~stays, to)
        if len(to) or count < n:
            self.cache.move(to, moved, self.longest)
            self.position[to], self.place[to] = self.position[moved], self.place[moved]
            self.position[count:n] = self.token[count:n] = 0  # what stands behind is inert, and always the same
            begins = dict(zip(number.tolist(), source.tolist()))
            self.begins = [self.begins[begins[i]] for i in range(count)]
            self._common = None
        self.token[number] = pairs % vocabulary
        return number[of]
