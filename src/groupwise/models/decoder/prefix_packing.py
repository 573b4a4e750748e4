"""The layout of a microbatch in which shared prompts and answer prefixes are packed, and forwarded, once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import ContentSpan
from groupwise.models.decoder.packed_attention import PaddedRows, SharedContextAttention
from groupwise.models.decoder.varlen_attention import VarlenAttention, VarlenRows, varlen_obstacle

__all__ = ["PrefixPacking"]

LEAST = 16
"""Rows of at most this many tokens share one bucket (a padded block)."""

LONG = 64
"""The longest prompt, in tokens, whose keys are copied for each answer. On CPU, a longer one has one shared copy."""
LONG_ON_GPU = 1024
"""The same bound for attention by `varlen_attn` on a GPU, where another call costs more than a copy."""

Text = tuple[int, ...]
Context = tuple[str, Text]
"""A prompt's identity: the hash of its content besides token ids (such as images), and its token ids."""
Row = tuple[list[int], int]
"""A text's tokens, as indices into the packed tokens, and how many of the last ones this row computes."""
Blocks = tuple[list[PaddedRows], Int[Tensor, " n"]]
"""Padded rectangles of rows, and the index of each packed token in their concatenated output."""


@dataclass(frozen=True, eq=False)
class PrefixPacking:
    """The packed layout of a microbatch: samples in one dimension, with shared prompts and answer prefixes stored once.

    Each token attends to its sample's context and to the sample's earlier tokens. The hidden state at packed index
    `predicting_indices[j]` predicts token `target_tokens[j]`; j runs over all samples' tokens in the given order. The
    last token of a sample predicts nothing and is not forwarded. A sample without tokens adds nothing.

    >>> shared = PrefixPacking.of([(1, 2), (1, 2), (1, 2)], [(7, 8), (9,), (7, 6, 5)])
    >>> shared.tokens, shared.positions
    (tensor([1, 2, 7, 6]), tensor([0, 1, 2, 3]))
    >>> shared.predicting_indices, shared.target_tokens
    (tensor([1, 2, 1, 1, 2, 3]), tensor([7, 8, 9, 7, 6, 5]))
    """

    tokens: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    predicting_indices: Int[Tensor, " m"]
    target_tokens: Int[Tensor, " m"]
    attention_rows: Sequence[Row]
    content_spans: Sequence[ContentSpan] = ()
    """The contexts with pictures, each once."""

    @classmethod
    def of(
        cls,
        contexts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        *,
        contents: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> "PrefixPacking":
        """The layout of `tokens[i]` after `contexts[i]`. ValueError for an empty context.

        `contents` are hashes of other content, such as images: contexts that differ in it share nothing.
        """
        if len(contexts) != len(tokens):
            raise ValueError(f"{len(contexts)} contexts for {len(tokens)} samples: each sample needs one")
        if not all(map(len, contexts)):
            raise ValueError("a context is empty: the first token of an answer needs a token before it")
        contents = [""] * len(tokens) if contents is None else contents
        live = [((h, tuple(c)), tuple(t)) for h, c, t in zip(contents, contexts, tokens, strict=True) if len(t)]
        packed, paths, rows = _pack([(c, t[:-1]) for c, t in live])
        position = chain(*(range(len(path) - added, len(path)) for path, added in rows))
        source = chain(*(path[len(c) - 1 :] for ((_, c), _), path in zip(live, paths)))
        target = chain(*(t for _, t in live))
        return cls(
            tokens=torch.tensor(packed, dtype=torch.long, device=device),
            positions=torch.tensor(list(position), dtype=torch.long, device=device),
            predicting_indices=torch.tensor(list(source), dtype=torch.long, device=device),
            target_tokens=torch.tensor(list(target), dtype=torch.long, device=device),
            attention_rows=rows,
            content_spans=_content_spans([context for context, _ in live], rows),
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
        """Scaled dot-product attention of every packed token over its prefix, within `window` tokens if given."""
        if not len(q):  # in the graph of keys and values too: under FSDP every rank reduces every gradient
            return q + (k + v).repeat_interleave(q.shape[1] // k.shape[1], 1)
        fused = q.is_cpu and window is None and softcap is None
        if fused and self._split:
            (blocks, slot), contexts = self._split
            return SharedContextAttention.apply(q, k, v, blocks, slot, contexts)
        if q.is_cuda and softcap is None and self._varlen_runs(q):
            rows, contexts = self._varlen_rows(window)
            return VarlenAttention.apply(q, k, v, rows, contexts, window)
        blocks, slot = self._unsplit
        outputs = [block.attend(q, k, v, window, softcap) for block in blocks]
        return torch.cat([q[:0], *outputs]).index_select(0, slot)

    def _varlen_runs(self, q: Float[Tensor, "n heads d"]) -> bool:
        """Whether this GPU computes this attention by `varlen_attn`."""
        return not varlen_obstacle(q.dtype, q.shape[-1], torch.cuda.get_device_capability(q.device))

    def _varlen_rows(self, window: int | None) -> tuple[VarlenRows, VarlenRows | None]:
        """The rows for `varlen_attn`, and the long contexts that they share; a window needs few keys of a context."""
        if window not in self._varlen:
            device = self.positions.device
            rows, contexts = (
                _split_long_contexts(self.attention_rows, LONG_ON_GPU) if window is None else (self.attention_rows, [])
            )
            shared = VarlenRows.across(contexts, device) if contexts else None
            self._varlen[window] = VarlenRows.of(rows, window, device), shared
        return self._varlen[window]

    @cached_property
    def _varlen(self) -> dict[int | None, tuple[VarlenRows, VarlenRows | None]]:
        """The rows by window: layers with equal windows share them."""
        return {}

    @cached_property
    def _unsplit(self) -> Blocks:
        """The rows in padded rectangles, where each row has the keys of its whole text."""
        return _blocks(self.attention_rows, self.positions.device)

    @cached_property
    def _split(self) -> tuple[Blocks, list[PaddedRows]] | None:
        """Rows without their long contexts, and one block per long context. None if no context is long."""
        rows, contexts = _split_long_contexts(self.attention_rows, LONG)
        blocks = [PaddedRows(torch.tensor([queries]), torch.tensor([keys])) for queries, keys in contexts]
        return (_blocks(rows, self.positions.device), blocks) if blocks else None


def _pack(texts: Sequence[tuple[Context, Text]]) -> tuple[list[int], list[list[int]], list[Row]]:
    """Pack (context, answer) pairs: returns the packed tokens, each text's packed indices, and the rows.

    In sorted order, a text shares its longest prefix with its predecessor. It adds only the tokens after that prefix.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    shared = [0] * len(texts)
    for before, after in pairwise(order):
        (context, answer), (next_context, next_answer) = texts[before], texts[after]
        if context == next_context:
            shared[after] = next((i for i, (a, b) in enumerate(zip(answer, next_answer)) if a != b), len(answer))
    contexts = list(dict.fromkeys(context for context, _ in texts))
    added = [*(ids for _, ids in contexts), *(answer[n:] for (_, answer), n in zip(texts, shared))]
    indices = [list(range(*ends)) for ends in pairwise(accumulate(map(len, added), initial=0))]
    newest, paths = dict(zip(contexts, indices)), [[]] * len(texts)
    for i in order:
        context = texts[i][0]
        newest[context] = paths[i] = newest[context][: len(context[1]) + shared[i]] + indices[len(contexts) + i]
    rows = [(path, len(tokens)) for path, tokens in zip([*indices[: len(contexts)], *paths], added) if tokens]
    return list(chain(*added)), paths, rows


def _content_spans(contexts: Sequence[Context], rows: Sequence[Row]) -> tuple[ContentSpan, ...]:
    """Where contexts with content besides tokens are packed: `_pack` puts the distinct contexts first, in order."""
    distinct = list(dict.fromkeys(contexts))
    starts = accumulate((len(ids) for _, ids in distinct), initial=0)
    spans = [ContentSpan(content, ids, start) for (content, ids), start in zip(distinct, starts) if content]
    added: dict[int, list[int]] = {span.start: [] for span in spans}
    for path, count in rows:
        if path[0] in added and count < len(path):  # only a context adds its whole path
            added[path[0]] += path[-count:]
    return tuple(replace(span, continuation=tuple(added[span.start])) for span in spans)


def _split_long_contexts(rows: Sequence[Row], long: int) -> tuple[list[Row], list[tuple[list[int], list[int]]]]:
    """Rows without contexts of more than `long` tokens, and for each of these the indices of its queries and keys."""
    contexts = {path[0]: path for path, added in rows if added == len(path)}  # only a context adds its whole path
    queries: dict[int, list[int]] = {}
    short = []
    for path, added in rows:
        length = len(contexts[path[0]])
        if added < len(path) and length > long:
            queries.setdefault(path[0], []).extend(path[-added:])
            path = path[length:]
        short.append((path, added))
    return short, [(indices, contexts[first]) for first, indices in queries.items()]


def _blocks(rows: Sequence[Row], device: torch.device) -> Blocks:
    """Pack rows of similar size into one padded block each. NumPy, which is faster on small arrays."""
    slot = np.zeros(sum(added for _, added in rows), np.int64)
    blocks, at = [], 0
    for members in _buckets(rows):
        width = max(len(path) for path, _ in members)
        keys = np.array([path + path[-1:] * (width - len(path)) for path, _ in members])
        size = np.array([[len(path), added] for path, added in members])
        first, added = size[:, :1] - size[:, 1:], size[:, 1:]
        offset = np.minimum(np.arange(added.max()), added - 1)  # a padded slot repeats the last token of its row
        queries = np.take_along_axis(keys, first + offset, 1)
        mask = None
        if first.any():
            mask = torch.from_numpy(np.arange(width) <= (first + offset)[:, None, :, None])  # key j is at position j
        blocks.append(
            PaddedRows(torch.from_numpy(queries), torch.from_numpy(keys), mask, causal=mask is None).to(device)
        )
        real = np.arange(offset.shape[1]) < added
        slot[queries[real]] = at + np.flatnonzero(real)
        at += real.size
    return blocks, torch.from_numpy(slot).to(device)


def _buckets(rows: Sequence[Row]) -> list[list[Row]]:
    """Buckets of rows whose sizes differ by less than a factor of two or are at most `LEAST`: little padding."""
    buckets: dict[tuple[int, int], list[Row]] = {}
    for path, added in rows:
        size = (max(added, LEAST) - 1).bit_length(), (max(len(path), LEAST) - 1).bit_length()
        buckets.setdefault(size, []).append((path, added))
    return [buckets[size] for size in sorted(buckets)]
