"""Distinct sequences in the engine: samples (rows) of a prompt share one forward pass while their tokens are equal."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import Ids, Layout
from groupwise.engines.native.cache import RowCache
from groupwise.engines.native.layouts import ROWS, Decode, KeysValues, SharedPrefix, padded, shared_tokens
from groupwise.models import LanguageModel, Routes


class UniqueSequences:
    """The sequences being generated. Rows (samples) that entered together are one sequence while their tokens agree.

    Each row of the engine stores the number of its sequence. A row's results do not depend on the other rows (see
    `layouts`), so one forward for all rows of a sequence is bit-identical to one forward per row.
    """

    def __init__(self, decoder: LanguageModel, *, max_rows: int, kv_cache_tokens: int) -> None:
        self.decoder = decoder
        shape, weight = decoder.shape, next(decoder.parameters())
        self.cache = RowCache(
            shape.layers, shape.kv_heads, shape.head_dim,
            bound=kv_cache_tokens, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip
        self.token, self.position, self.place = torch.zeros(3, padded(max_rows, ROWS), dtype=torch.long).to(
            weight.device
        )
        self.prefixes: list[KeysValues | None] = []
        self._shared: list[SharedPrefix] | None = None

    def __len__(self) -> int:
        return len(self.prefixes)

    @property
    def longest(self) -> int:
        """The largest cache position of any sequence's next token."""
        return int(self.place[: len(self)].max()) if len(self) else 0

    @property
    def shared(self) -> list[SharedPrefix]:
        """The sequences in groups that share a cached prompt prefix."""
        if self._shared is None:
            groups: dict[int, tuple[KeysValues, list[int]]] = {}
            for number, prefix in enumerate(self.prefixes):
                if prefix is not None:
                    groups.setdefault(id(prefix[0]), (prefix, []))[1].append(number)
            self._shared = [SharedPrefix.of(prefix, rows, self.token.device) for prefix, rows in groups.values()]
        return self._shared

    def grow(self, rows: int, positions: int) -> None:
        """Allocate cache memory for `rows` sequences of `positions` tokens."""
        self.cache.grow(padded(rows, ROWS), positions, len(self))

    def enter(self, context: Ids, cached: KeysValues | None) -> int:
        """Add a sequence and return its number. `cached` holds the prompt's keys and values but the last token's."""
        new, shared = len(self), shared_tokens(len(context))
        self.token[new], self.position[new], self.place[new] = context[-1], len(context) - 1, len(context) - 1 - shared
        prefix = None
        if cached is not None:
            self.cache.enter(new, *(x[:, :, shared:] for x in cached))
            prefix = (cached[0][:, :, :shared], cached[1][:, :, :shared]) if shared else None
        self.prefixes.append(prefix)
        self._shared = None
        return new

    def forward(self, routes: Routes | None = None) -> Float[Tensor, "padded v"]:
        """Logits after each sequence's newest token, which enters the cache. The routes are written to `routes`."""
        n = len(self)
        recording = {"routes": routes} if routes else {}
        logits = self.decoder.head(self.decoder(self.token[: padded(n, ROWS)], self.layout(), **recording))
        self.position[:n] += 1
        self.place[:n] += 1
        return logits

    def layout(self) -> Layout:
        """The attention of each sequence's newest token to its cache and its shared prefix."""
        return self.decode()

    def decode(self) -> Decode:
        """The layout of one new token per sequence."""
        n = len(self)
        position = self.position[: padded(n, ROWS)]
        return Decode.of(self.cache.chunks, position, self.place[:n], self.longest, self.shared)

    def split(self, sequence: Int[Tensor, " rows"], token: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Split sequences where their rows' newest tokens differ. Returns each row's new sequence number.

        The first continuation of a sequence keeps its place in the cache, the others copy it. Sequences without rows
        are removed.
        """
        n, vocabulary = len(self), self.decoder.shape.vocabulary
        pairs, index = (sequence * vocabulary + token).unique(return_inverse=True)
        source, count = pairs // vocabulary, len(pairs)
        stays = (source < count) & (source != F.pad(source, (1, 0), value=-1)[:count])
        free = torch.ones_like(stays)
        free[source[stays]] = False
        to, moved = free.nonzero().squeeze(1), source[~stays]
        number = source.masked_scatter(~stays, to)
        if len(to) or count < n:
            self.cache.copy(to, moved, self.longest)
            self.position[to], self.place[to] = self.position[moved], self.place[moved]
            self.position[count:n] = self.token[count:n] = 0  # unused places are inert and always the same
            sources = dict(zip(number.tolist(), source.tolist()))
            self.prefixes = [self.prefixes[sources[i]] for i in range(count)]
            self._shared = None
        self.token[number] = pairs % vocabulary
        return number[index]
