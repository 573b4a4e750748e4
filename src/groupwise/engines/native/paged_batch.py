"""The running requests on a GPU: one decoding step has static shapes and one wait of the host for the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from groupwise.data import Finish, Generation, Sampling
from groupwise.engines.native.cuda_step_graphs import CudaStepGraphs
from groupwise.engines.native.paged_attention_layout import PagedLayout
from groupwise.engines.native.paged_cache import PagedCache
from groupwise.engines.native.pages import PAGE, Page
from groupwise.engines.native.row_sampling import largest_needed, row_bounds, row_logprobs, row_truncated, row_uniforms
from groupwise.engines.native.running_batch import PendingRequest, completes_stop
from groupwise.models import LanguageModel, Tokenizer, choose, lineage, logprobs

AHEAD = 64
"""Tokens for which the random numbers of all rows are computed at once."""
LEAST_ROWS = 8
"""The fewest rows of a step; others are powers of two, or the bound of the engine."""


@dataclass(eq=False, slots=True)
class RunningRequest:
    """A running request, its pages and its generated tokens, on the host."""

    pending_request: PendingRequest
    pages: list[Page]
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return self.tokens[-1] if self.tokens else self.pending_request.request.context[-1]

    @property
    def position(self) -> int:
        """The position of the newest token, whose key is not yet in the cache."""
        return len(self.pending_request.request.context) - 1 + len(self.tokens)


class PagedBatch:
    """The running requests as rows of static buffers. Row i of the buffers is `rows[i]`; further rows are padding.

    A step reads and writes the buffers only, so a CUDA graph can hold it. The host writes them when requests start,
    when half of the rows are idle, and every `AHEAD` tokens for the random numbers. A row that has ended computes on,
    into pages that no other row has, until the buffers are written next.
    """

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int, kv_cache_tokens: int,
        one_shape: bool,
    ) -> None:  # fmt: skip
        self.decoder, self.tokenizer, self.seed = decoder, tokenizer, seed
        self.max_num_seqs, self.one_shape = max_num_seqs, one_shape
        self.cache = PagedCache(decoder, kv_cache_tokens=kv_cache_tokens, one_shape=one_shape)
        device = next(decoder.parameters()).device
        self.graphs = CudaStepGraphs(capture=device.type == "cuda" and torch.version.cuda is not None)
        self.eos = frozenset(tokenizer.eos_ids)
        self.rows: list[RunningRequest | None] = []
        """The requests by their row of the buffers; None if the request has ended."""
        self._ended = list[list[Page]]()
        self._stale, self._size, self._column = True, 0, 0
        n = max_num_seqs
        self.numbers = torch.zeros(5, n, dtype=torch.long, device=device)  # see `_write`
        self.bounds = torch.zeros(4, n, dtype=torch.float64, device=device)
        self.table = torch.zeros(n, self.cache.columns, dtype=torch.int32, device=device)
        self.uniforms = torch.zeros(AHEAD, n, dtype=torch.float64, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.ends = torch.arange(n + 1, dtype=torch.int32, device=device)

    def __len__(self) -> int:
        return len(self.running)

    @property
    def running(self) -> list[PendingRequest]:
        return [row.pending_request for row in self.rows if row]

    @property
    def held(self) -> int:
        """The pages that running requests hold, without those of ended ones."""
        self._drop_ended()
        return self.cache.pages.held

    def clear(self) -> None:
        """Free the memory of the cache and of the captured steps; no request is running."""
        self._drop_ended()
        self.rows = []
        self.graphs.drop()
        self.cache.clear()

    def add(self, scheduled: Sequence[PendingRequest]) -> None:
        """Start requests: prefill each distinct context once, and give each request its pages."""
        self._drop_ended()
        self.rows = [row for row in self.rows if row]
        contexts = [pending.request.context_key for pending in scheduled]
        self.cache.prefill([(content, ids[:-1]) for content, ids in contexts])
        copies = []
        for pending, context in zip(scheduled, contexts):
            pages, copy = self.cache.enter(context, pending.request.limit)
            copies += [copy] if copy else []
            self.rows.append(RunningRequest(pending, pages))
        if self.cache.allocate():
            self.graphs.drop()
        self.cache.copy(copies)
        self._stale = True

    @torch.inference_mode()
    def decode(self) -> list[tuple[PendingRequest, Generation]]:
        """Sample one token for each row. Removes and returns finished requests; the caller fills in their versions."""
        if len(self) <= len(self.rows) // 2 and not self.one_shape:
            self._drop_ended()
            self.rows = [row for row in self.rows if row]
        if self._stale or self._column == AHEAD:
            self._write()
        requests = [pending.request for pending in self.running]
        greedy = any(r.sampling.temperature == 0 for r in requests)
        most = largest_needed((r.sampling for r in requests), self.decoder.shape.vocabulary_size)
        step = partial(self._step, self._size, greedy, most)
        out, logits = self.graphs.run((self._size, greedy, most), step)
        self._column += 1
        tokens, logp = out.tolist()  # the one wait of the step
        finishes: dict[int, Finish] = {}
        for index, (i, row) in enumerate((i, row) for i, row in enumerate(self.rows) if row):
            row.tokens.append(int(tokens[i]))
            row.logp.append(logp[i])
            if row.pending_request.request.num_top_logprobs:
                _record_likeliest(logits[i : i + 1], row)
            if (finish := self._finish_of(row)) is not None:
                finishes[index] = finish
        return self.finish(list(finishes), list(finishes.values()))

    def finish(self, rows: Sequence[int], finishes: Sequence[Finish]) -> list[tuple[PendingRequest, Generation]]:
        """Remove requests, by their index in `running`, and return their generations so far."""
        where = [i for i, row in enumerate(self.rows) if row]
        finished = []
        for index, finish in zip(rows, finishes, strict=True):
            row = self.rows[where[index]]
            assert row
            self.rows[where[index]] = None
            self._ended.append(row.pages)
            if not self.one_shape:
                content, ids = row.pending_request.request.context_key
                self.cache.pages.store((content, (*ids, *row.tokens)[: row.position]), row.pages)
            finished.append((row.pending_request, Generation(
                tokens=tuple(row.tokens), logp=tuple(row.logp), versions=(), finish=finish,
                top_logprobs=tuple(row.pending_request.collected_top_logprobs),
            )))  # fmt: skip
        return finished

    def _finish_of(self, row: RunningRequest) -> Finish | None:
        request = row.pending_request.request
        if row.newest in self.eos:
            return Finish.stop
        if request.sampling.stop and completes_stop(self.tokenizer, request, row.tokens):
            return Finish.stop
        return Finish.length if len(row.tokens) >= request.limit else None

    def _drop_ended(self) -> None:
        """Release the pages of ended rows. The buffers are stale: they are written before the next step."""
        for pages in self._ended:
            self.cache.pages.release(pages)
            self._stale = True
        self._ended.clear()

    def _write(self) -> None:
        """Write the buffers from the host, and compute the random numbers of the next `AHEAD` tokens."""
        self._size = self._rows_of_step(len(self.rows))
        numbers = np.zeros((5, self._size), np.int64)  # newest token, position, draw, stream, position of the key
        table = np.zeros((self._size, self.cache.columns), np.int32)
        for i, row in enumerate(self.rows):
            if row:
                request = row.pending_request.request
                stream = np.array(lineage(request.stream), np.uint64).astype(np.int64)
                numbers[:, i] = (
                    row.newest,
                    row.position,
                    request.draw_id,
                    stream,
                    request.already_generated_count + len(row.tokens),
                )
                table[i, : len(row.pages)] = [page.index for page in row.pages]
        padded = [*self.rows, *[None] * (self._size - len(self.rows))]
        purpose = torch.tensor([row.pending_request.request.random_purpose if row else 0 for row in padded])
        samplings = [row.pending_request.request.sampling if row else Sampling() for row in padded]
        bounds = row_bounds(samplings, self.decoder.shape.vocabulary_size)
        for buffer, x in ((self.numbers, numbers), (self.bounds, bounds), (self.table.T, table.T)):
            buffer[:, : self._size].copy_(torch.from_numpy(x), non_blocking=True)
        draw, stream, at = self.numbers[2:, : self._size]
        uniforms = row_uniforms(self.seed, purpose.to(at.device), draw, stream, at, AHEAD)
        self.uniforms[:, : self._size].copy_(uniforms)
        self.column.zero_()
        self._stale, self._column = False, 0

    def _rows_of_step(self, rows: int) -> int:
        if self.one_shape:
            return self.max_num_seqs
        return min(max(1 << (rows - 1).bit_length(), LEAST_ROWS), self.max_num_seqs)

    def _step(self, n: int, greedy: bool, most: int | None) -> tuple[Tensor, Tensor]:
        """One step of the first n rows, from buffers to buffers: tokens with their log-probs, and the logits."""
        token, position = (x[:n] for x in self.numbers[:2])
        bounds = self.bounds[:, :n]
        table = self.table[:n]
        at = position.clamp(max=table.shape[1] * PAGE - 1)  # a row that has ended goes on counting
        slot = table.gather(1, (at // PAGE)[:, None])[:, 0] * PAGE + at % PAGE
        used = (at + 1).int()
        layout = PagedLayout(at, slot, self.ends[: n + 1], used, table, self.cache.keys, self.cache.values, 1)
        logits = self.decoder.head(self.decoder(token, layout))
        logp = row_logprobs(logits, bounds[0], greedy=greedy)
        if most is not None:
            logp = row_truncated(logp, bounds[1:], most)
        u = self.uniforms.index_select(0, self.column)[0, :n]
        chosen = choose(logp, u)
        token.copy_(chosen)
        position.add_(1)
        self.column.add_(1)
        return torch.stack([chosen.double(), logp.gather(1, chosen[:, None])[:, 0].double()]), logits


def _record_likeliest(logits: Tensor, row: RunningRequest) -> None:
    best = logprobs(logits).topk(min(row.pending_request.request.num_top_logprobs, logits.shape[1]))
    row.pending_request.collected_top_logprobs.append(tuple(zip(best.indices[0].tolist(), best.values[0].tolist())))
