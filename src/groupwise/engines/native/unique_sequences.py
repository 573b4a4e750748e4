"""Distinct sequences in the engine: samples (rows) of a prompt share one forward pass while their tokens are equal."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import AttentionLayout, Ids
from groupwise.engines.native.attention_layouts import (
    ROWS,
    CommonPrefix,
    DecodeLayout,
    KeysValues,
    common_prefix_len,
    padded,
)
from groupwise.engines.native.kv_cache import KVCache
from groupwise.models import ChosenExperts, LanguageModel


class UniqueSequences:
    """The sequences being generated. Rows (samples) that were added together are one sequence while their tokens agree.

    Each row of the engine stores the index of its sequence. A row's results do not depend on the other rows (see
    `layouts`), so one forward for all rows of a sequence is bit-identical to one forward per row.
    """

    def __init__(self, decoder: LanguageModel, *, max_num_seqs: int, kv_cache_tokens: int) -> None:
        self.decoder = decoder
        shape, weight = decoder.shape, next(decoder.parameters())
        self.cache = KVCache(
            shape.layers, shape.kv_heads, shape.head_dim,
            bound=kv_cache_tokens, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip
        self.token, self.position, self.cache_slot = torch.zeros(3, padded(max_num_seqs, ROWS), dtype=torch.long).to(
            weight.device
        )
        self.prefixes: list[KeysValues | None] = []
        self._common_prefixes: list[CommonPrefix] | None = None

    def __len__(self) -> int:
        return len(self.prefixes)

    @property
    def last_slot(self) -> int:
        """The largest cache position of any sequence's next token."""
        return int(self.cache_slot[: len(self)].max()) if len(self) else 0

    @property
    def common_prefixes(self) -> list[CommonPrefix]:
        """The sequences in groups that share a cached prompt prefix."""
        if self._common_prefixes is None:
            groups: dict[int, tuple[KeysValues, list[int]]] = {}
            for index, prefix in enumerate(self.prefixes):
                if prefix is not None:
                    groups.setdefault(id(prefix[0]), (prefix, []))[1].append(index)
            self._common_prefixes = [
                CommonPrefix.of(prefix, rows, self.token.device) for prefix, rows in groups.values()
            ]
        return self._common_prefixes

    def allocate(self, rows: int, positions: int) -> None:
        """Allocate cache memory for `rows` sequences of `positions` tokens."""
        self.cache.allocate(padded(rows, ROWS), positions, len(self))

    def add(self, context: Ids, cached: KeysValues | None, position_shift: int = 0) -> int:
        """Add a sequence and return its index. `cached` holds the prompt's keys and values but the last token's.

        `position_shift` is added to its rotary positions, which differ from its indices after pictures.
        """
        new, prefix_len = len(self), common_prefix_len(len(context))
        self.token[new], self.position[new] = context[-1], len(context) - 1 + position_shift
        self.cache_slot[new] = len(context) - 1 - prefix_len
        prefix = None
        if cached is not None:
            self.cache.write(new, *(x[:, :, prefix_len:] for x in cached))
            prefix = (cached[0][:, :, :prefix_len], cached[1][:, :, :prefix_len]) if prefix_len else None
        self.prefixes.append(prefix)
        self._common_prefixes = None
        return new

    def forward(self, routes: ChosenExperts | None = None) -> Float[Tensor, "padded v"]:
        """Logits after each sequence's newest token, which enters the cache. The routes are written to `routes`."""
        n = len(self)
        recording = {"routes": routes} if routes else {}
        logits = self.decoder.head(self.decoder(self.token[: padded(n, ROWS)], self.layout(), **recording))
        self.position[:n] += 1
        self.cache_slot[:n] += 1
        return logits

    def layout(self) -> AttentionLayout:
        """The attention of each sequence's newest token to its cache and its shared prefix."""
        return self.decode_layout()

    def decode_layout(self) -> DecodeLayout:
        """The layout of one new token per sequence."""
        n = len(self)
        position = self.position[: padded(n, ROWS)]
        return DecodeLayout.of(self.cache.blocks, position, self.cache_slot[:n], self.last_slot, self.common_prefixes)

    def split(self, sequence: Int[Tensor, " rows"], token: Int[Tensor, " rows"]) -> Int[Tensor, " rows"]:
        """Split sequences where their rows' newest tokens differ. Returns each row's new sequence.

        The first continuation of a sequence keeps its row of the cache; the others copy it. Sequences without rows go.
        """
        n, vocabulary = len(self), self.decoder.shape.vocabulary_size
        pairs, index = (sequence * vocabulary + token).unique(return_inverse=True)
        source, count = pairs // vocabulary, len(pairs)
        stays = (source < count) & (source != F.pad(source, (1, 0), value=-1)[:count])
        free = torch.ones_like(stays)
        free[source[stays]] = False
        to, moved = free.nonzero().squeeze(1), source[~stays]
        sequence_of = source.masked_scatter(~stays, to)
        if len(to) or count < n:
            self.cache.copy(to, moved, self.last_slot)
            self.position[to], self.cache_slot[to] = self.position[moved], self.cache_slot[moved]
            self.position[count:n] = self.token[count:n] = 0  # unused rows are inert and always the same
            sources = dict(zip(sequence_of.tolist(), source.tolist()))
            self.prefixes = [self.prefixes[sources[i]] for i in range(count)]
            self._common_prefixes = None
        self.token[sequence_of] = pairs % vocabulary
        return sequence_of[index]
