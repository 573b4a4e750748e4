"""The native engine on a GPU: paged keys and values, steps of static shape, and sampling on the device."""

from collections.abc import Sequence
from itertools import islice

import torch

from groupwise.data import ContextKey
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.native.paged_batch import PagedBatch
from groupwise.engines.native.pages import PAGE, pages_for
from groupwise.engines.native.running_batch import PendingRequest
from groupwise.models import LanguageModel, Tokenizer

__all__ = ["PagedEngine"]


class PagedEngine(NativeEngine):
    """A `NativeEngine` whose decoding step is one CUDA graph, with the same keyed samples up to rounding.

    Prompts of a group are prefilled once, and sequences with an equal beginning share its whole pages; turns of a
    conversation reuse the pages of the turns before. With `batch_invariant`, decoding always has `max_num_seqs` rows,
    and each prompt is prefilled alone in chunks of `PAGE` tokens: all operations on a sequence have the same shapes
    whatever else runs. Then pages of generated tokens are not reused. Otherwise rows and chunks are padded to powers of
    two.
    """

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int = 256,
        kv_cache_tokens: int = 1 << 20,
        batch_invariant: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(decoder, tokenizer, seed=seed, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self._paged = PagedBatch(
            decoder,
            tokenizer,
            seed=seed,
            max_num_seqs=max_num_seqs,
            kv_cache_tokens=kv_cache_tokens,
            one_shape=batch_invariant,
        )
        self._batch = self._paged  # type: ignore[assignment]  # what reads its other parts is overridden here

    @torch.inference_mode()
    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Compute and cache the keys and values of prompts, as many as there are free pages for."""
        pages = self._paged.cache.pages
        for content, ids in contexts:
            self._check_length(ids, 1)
            if pages.held + pages_for(len(ids)) <= pages.most:
                self._paged.cache.prefill([(content, ids[:-1])])

    @torch.inference_mode()
    def _schedule(self) -> None:
        """Start waiting requests in order of arrival while there are pages for their whole limits."""
        if not self._waiting:
            return
        scheduled, contexts = list[PendingRequest](), set[ContextKey]()
        running, needed = len(self._batch), self._paged.held
        for pending in islice(self._waiting, self._max_num_seqs - running):
            context = pending.request.context_key
            shared = (len(context[1]) - 1) // PAGE
            needed += pages_for(len(context[1]) + pending.request.limit) - shared
            needed += 0 if context in contexts else shared + 1
            if needed > self._paged.cache.pages.most and running + len(scheduled):
                break
            contexts.add(context)
            scheduled.append(pending)
        if scheduled:
            self._paged.add(scheduled)
        for _ in scheduled:
            self._waiting.popleft()
