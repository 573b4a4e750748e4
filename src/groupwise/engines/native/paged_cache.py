"""The pages of keys and values on the device: prompts are prefilled into them in chunks, whole pages are shared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import ContextKey, Ids
from groupwise.engines.native.paged_attention_layout import PagedLayout
from groupwise.engines.native.pages import PAGE, Page, PagePool, pages_for
from groupwise.models import LanguageModel

CHUNK = 8192
"""The most tokens of one prefill forward."""
LEAST_CHUNK = 16
"""The fewest; the number of tokens is padded to a power of two."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `start` to `end` of a text, whose keys and values go to its pages."""

    ids: Ids
    pages: Sequence[Page]
    start: int
    end: int


class PagedCache:
    """Pages for at most `kv_cache_tokens` tokens, allocated as they are needed.

    If `one_shape`, each text is prefilled alone, in chunks of one page from a page's start, and reuses only whole
    prefilled pages: its keys and values are then a function of its tokens alone, at one shape of all operations.
    """

    def __init__(self, model: LanguageModel, *, kv_cache_tokens: int, one_shape: bool) -> None:
        shape, weight = model.shape, next(model.parameters())
        self.model, self.one_shape = model, one_shape
        self.columns = pages_for(min(shape.max_positions, kv_cache_tokens))
        self.pages = PagePool(pages_for(kv_cache_tokens) + 1)  # one more: the last page of a text is copied
        self._empty = weight.new_zeros(shape.layers, 0, PAGE, shape.kv_heads, shape.head_dim)
        self.prefilled = 0
        """Tokens that were prefilled so far."""
        self.clear()

    def clear(self) -> None:
        """Free the memory. Only when no sequence is running."""
        self.pages.clear()
        self.keys: Float[Tensor, "layers pages page kv d"] = self._empty
        self.values: Float[Tensor, "layers pages page kv d"] = self._empty

    def allocate(self) -> bool:
        """Allocate memory for the pages that are taken. Whether it moved."""
        needed, allocated = self.pages.highest + 1, self.keys.shape[1]
        if needed <= allocated:
            return False
        grown = min(max(needed, 2 * allocated), self.pages.most + 1)
        more = self._empty.new_zeros(len(self._empty), grown - allocated, *self._empty.shape[2:])
        self.keys, self.values = (torch.cat([x, more], 1) for x in (self.keys, self.values))
        return True

    def prefill(self, texts: Sequence[ContextKey]) -> None:
        """Compute and cache the keys and values of texts, as far as they are not cached."""
        pieces, held = list[PrefillChunk](), list[tuple[ContextKey, list[Page]]]()
        copies = list[tuple[Page, Page]]()
        for text in dict.fromkeys(text for text in texts if text[1]):
            match = self.pages.match(text)
            if match.tokens == len(text[1]):
                continue
            start = len(match.whole_pages) * PAGE if self.one_shape else match.tokens
            self.pages.hold(match.whole_pages)
            new = self.pages.take(pages_for(len(text[1])) - len(match.whole_pages))
            if match.partial_page and start == match.tokens:
                copies.append((new[0], match.partial_page))
            held.append((text, [*match.whole_pages, *new]))
            pieces.append(PrefillChunk(text[1], held[-1][1], start, len(text[1])))
        self.allocate()
        self.copy(copies)
        for chunk in chunks(pieces, PAGE if self.one_shape else CHUNK, alone=self.one_shape):
            self._forward(chunk)
        for text, pages in held:
            self.pages.store(text, pages)
            self.pages.release(pages)

    def enter(self, context: ContextKey, limit: int) -> tuple[list[Page], tuple[Page, Page] | None]:
        """The pages of a new sequence whose context without its last token is cached, up to its last position.

        Whole pages are shared. The second result is a copy to make, of the context's last page.
        """
        content, ids = context
        match = self.pages.match((content, ids[:-1]))
        assert match.tokens == len(ids) - 1, "prefill() has cached the context"
        self.pages.hold(match.whole_pages)
        new = self.pages.take(max(pages_for(len(ids) + limit - 1), len(match.whole_pages) + 1) - len(match.whole_pages))
        return [*match.whole_pages, *new], (new[0], match.partial_page) if match.partial_page else None

    def copy(self, copies: Sequence[tuple[Page, Page]]) -> None:
        """Copy pages: pairs of target and source."""
        if copies:
            to, source = torch.tensor([[page.index for page in pair] for pair in copies]).to(self.keys.device).T
            for x in (self.keys, self.values):
                x.index_copy_(1, to, x.index_select(1, source))

    def _forward(self, chunk: Sequence[PrefillChunk]) -> None:
        """Forward the tokens of one chunk; its padding goes to page 0."""
        lengths = [piece.end - piece.start for piece in chunk]
        n = sum(lengths)
        size = PAGE if self.one_shape else max(1 << (n - 1).bit_length(), LEAST_CHUNK)
        self.prefilled += n
        tokens = np.zeros((3, size), np.int64)  # token, position, slot
        table = np.zeros((len(chunk) + 1, self.columns), np.int32)  # the last row is the padding's
        for piece, length, end, row in zip(chunk, lengths, accumulate(lengths), table):
            indices = np.array([page.index for page in piece.pages])
            at = np.arange(piece.start, piece.end)
            row[: len(indices)] = indices
            tokens[:, end - length : end] = (
                piece.ids[piece.start : piece.end],
                at,
                indices[at // PAGE] * PAGE + at % PAGE,
            )
        ends = np.array([0, *accumulate(lengths), size], np.int32)
        used = np.array([*(piece.end for piece in chunk), max(size - n, 1)], np.int32)
        device = self.keys.device
        token, position, slot = torch.from_numpy(tokens).to(device)
        row_ends, keys_used, tables = (torch.from_numpy(x).to(device) for x in (ends, used, table))
        longest = max(*lengths, size - n)
        layout = PagedLayout(position, slot, row_ends, keys_used, tables, self.keys, self.values, longest)
        self.model(token, layout)


def chunks(pieces: Sequence[PrefillChunk], size: int, *, alone: bool) -> Iterator[list[PrefillChunk]]:
    """Cut texts into chunks of at most `size` tokens; `alone`: of one text each, from multiples of `size`."""
    chunk, room = list[PrefillChunk](), size
    for piece in pieces:
        first = piece.start
        while first < piece.end:
            end = min(piece.end, first + room)
            chunk.append(PrefillChunk(piece.ids, piece.pages, first, end))
            first, room = end, room - (end - first)
            if room == 0 or alone:
                yield chunk
                chunk, room = [], size
    if chunk:
        yield chunk
