"""The native engine: continuous batching in the trainer's process; requests start and finish at any token."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

import torch
from torch import Tensor

from groupwise.core import EngineLost, Usage
from groupwise.data import ContextKey, Finish, Generation, GenerationRequest, Ids, Picture
from groupwise.data.pictures import hash_of_pictures
from groupwise.engines.native.attention_layouts import ROWS, PrefillLayout, common_prefix_len, padded
from groupwise.engines.native.kv_cache import PrefixCache
from groupwise.engines.native.routes import context_routes
from groupwise.engines.native.running_batch import PendingRequest, RunningBatch
from groupwise.engines.native.weight_loading import check_weights, load_weights
from groupwise.models import (
    ChosenExperts,
    LanguageModel,
    MixtureOfExpertsSizes,
    Tokenizer,
    VisionModel,
    drop_blocks,
    keep_pictures,
    logprobs,
    with_blocked_weights,
)
from groupwise.models.return_freed_memory import return_freed_memory

__all__ = ["NativeEngine"]

MAX_NUM_BATCHED_TOKENS = 8192
"""The most prompt tokens in one prefill forward; a longer prompt is prefilled alone."""


class NativeEngine:
    """An `Engine` over one decoder. It shares the learner's weights if `load` gets the decoder's own tensors.

    At most `max_num_seqs` requests are running, and running requests and cached prompts have at most `kv_cache_tokens`
    tokens. Further requests are waiting, in order of arrival. A request is scheduled once the cache has slots for its
    whole `limit`, or if no other one is running; so none is ever preempted. A sample does not depend on other requests:
    random numbers are keyed, and on one thread logits are bit-identical (see `layouts`). With `experts`, the engine
    records all routes.
    """

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int = 256,
        kv_cache_tokens: int = 1 << 20,
        experts: MixtureOfExpertsSizes | None = None,
    ) -> None:  # fmt: skip
        self.version, self.steps = 0, 0
        """The version of the weights, and the number of forward passes so far."""
        self._decoder, self._kv_cache_tokens, self._max_num_seqs = decoder, kv_cache_tokens, max_num_seqs
        self._model = decoder if experts else with_blocked_weights(decoder)  # hooks record routes
        self._experts = experts
        self._batch = RunningBatch(
            self._model,
            tokenizer,
            seed=seed,
            max_num_seqs=max_num_seqs,
            kv_cache_tokens=kv_cache_tokens,
            experts=experts,
        )
        self._prefixes = PrefixCache()
        self._waiting: deque[PendingRequest] = deque()
        self._loop: asyncio.Task[None] | None = None
        self._cancelled = False

    async def sample(self, request: GenerationRequest) -> Generation:
        """Generate the next tokens of one sample. `Usage` if prompt and `limit` exceed positions or cache."""
        self._check(request)
        keep_pictures(self._decoder, request.content_hash, request.pictures)
        pending = PendingRequest(request, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        """The log-prob of each token given all tokens before it, under the softmax of `logits / temperature`.

        `pictures` are those behind the placeholders of the context. `Usage` for a model that takes none.
        """
        if not tokens:
            return ()
        self._check_loaded()
        self._check_length(context, len(tokens))
        content = hash_of_pictures(pictures)
        keep_pictures(self._decoder, content, pictures)
        with torch.inference_mode():
            hidden = self._forward([(content, context + tokens[:-1])])[1][len(context) - 1 :][: len(tokens)]
            logp = logprobs(self._model.head(hidden), temperature)
            return tuple(logp[range(len(tokens)), list(tokens)].tolist())

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights. Running requests end with the finish `cut` and their tokens so far; caches are emptied.

        ValueError for the weights of another model.
        """
        check_weights(self._decoder.state_dict(), weights)
        self._resolve(self._batch.finish(range(len(self._batch)), [Finish.cut] * len(self._batch)))
        self.version = -1  # a failure below leaves a mixture of old and new weights
        drop_blocks(self._model)
        self._prefixes.clear()
        self._batch.clear()
        return_freed_memory()  # before the weights of a file are read
        load_weights(self._decoder, weights)
        if isinstance(self._decoder, VisionModel):
            self._decoder.drop_features()
        self.version = version

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Compute and cache the keys and values of prompts, identified by tokens and hash of non-text content."""
        for _, ids in contexts:
            self._check_length(ids, 1)
        self._cache_contexts([(content, ids[:-1]) for content, ids in contexts])
        self._prefixes.evict(max(self._kv_cache_tokens - self._reserved(), 0))

    async def _run(self) -> None:
        """Decode token by token until no request is left."""
        try:
            while True:
                await asyncio.sleep(0)  # a caller whose request finished may send the next one before the next token
                self._abort_cancelled()
                self._schedule()
                if not self._batch.running:
                    return
                self.steps += 1
                self._resolve(self._batch.decode())
        except asyncio.CancelledError:
            self._fail(None)
            raise
        except Exception as error:
            self._fail(error)
        finally:
            drop_blocks(self._model)  # free the memory while the engine is idle

    def _schedule(self) -> None:
        """Start waiting requests in order of arrival while there is room. Equal prompts are prefilled once."""
        if not self._waiting:
            return
        running, width = len(self._batch), self._batch.max_slots
        scheduled: list[PendingRequest] = []
        contexts = {pending.request.context_key for pending in self._batch.running}
        for pending in islice(self._waiting, self._max_num_seqs - running):
            rows, width = running + len(scheduled) + 1, max(width, pending.max_slots)
            contexts.add(pending.request.context_key)
            if rows > 1 and padded(rows, ROWS) * width + _prefix_tokens(contexts) > self._kv_cache_tokens:
                break
            scheduled.append(pending)
        if not scheduled:
            return
        keys = [pending.request.context_key for pending in scheduled]
        self._cache_contexts([(content, ids[:-1]) for content, ids in keys])
        lengths = (len(ids) - common_prefix_len(len(ids)) for _, ids in keys)
        longest = max(self._batch.sequences.last_slot + 1, *lengths)
        with torch.inference_mode():
            self._batch.sequences.allocate(running + len(scheduled), longest)
            for (content, ids), group in groupby(scheduled, key=lambda pending: pending.request.context_key):
                prefix, new = (content, ids[:-1]), list(group)
                if routes := self._prefixes.routes.get(prefix, ()):
                    new = [replace(pending, prompt_routes=routes) for pending in new]
                self._batch.add(new, self._prefixes[prefix] if prefix[1] else None)
        for _ in scheduled:
            self._waiting.popleft()
        self._prefixes.evict(max(self._kv_cache_tokens - self._reserved(), 0))

    def _reserved(self) -> int:
        """The number of reserved cache tokens: the longest one's for each running request, and their prefixes."""
        contexts = {pending.request.context_key for pending in self._batch.running}
        return padded(len(self._batch), ROWS) * self._batch.max_slots + _prefix_tokens(contexts)

    def _cache_contexts(self, contexts: Sequence[ContextKey]) -> None:
        """Prefill the prompts that are not cached, sorted by length so that prompts of equal padding are adjacent."""
        missing = sorted({c for c in contexts if c[1] and c not in self._prefixes}, key=lambda c: (len(c[1]), c))
        pack: list[ContextKey] = []
        for i, context in enumerate(missing):
            pack.append(context)
            if i + 1 == len(missing) or sum(len(ids) for _, ids in (*pack, missing[i + 1])) > MAX_NUM_BATCHED_TOKENS:
                with torch.inference_mode():
                    routes = ChosenExperts(self._experts) if self._experts else None
                    layout, _ = self._forward(pack, routes)
                    for key, (keys, values) in zip(pack, layout.split()):
                        self._prefixes.put(key, keys, values)
                    if routes is not None:
                        self._prefixes.routes |= context_routes(routes, pack, layout.padded_lengths)
                pack = []

    def _forward(
        self, contexts: Sequence[ContextKey], routes: ChosenExperts | None = None
    ) -> tuple[PrefillLayout, Tensor]:
        self.steps += 1
        contents, prompts = zip(*contexts)
        layout = PrefillLayout.of(prompts, next(self._decoder.parameters()).device, contents)
        return layout, self._model(layout.tokens, layout, **({"routes": routes} if routes else {}))

    def _resolve(self, finished: Sequence[tuple[PendingRequest, Generation]]) -> None:
        for pending, generation in finished:
            if not pending.future.done():
                versions = (self.version,) * len(generation.tokens)
                pending.future.set_result(replace(generation, versions=versions))

    def _abort_cancelled(self) -> None:
        """Remove cancelled requests, waiting and running."""
        if self._cancelled:
            self._waiting = deque(pending for pending in self._waiting if not pending.future.done())
            rows = [r for r, pending in enumerate(self._batch.running) if pending.future.done()]
            self._batch.finish(rows, [Finish.cut] * len(rows))
            self._cancelled = False

    def _fail(self, error: Exception | None) -> None:
        """Pass the error to the callers of all requests, or cancel them if it is None; then remove all requests."""
        for pending in (*self._batch.running, *self._waiting):
            if not pending.future.done():
                if error is None:
                    pending.future.cancel()
                else:
                    pending.future.set_exception(error)
        self._waiting.clear()
        self._batch.finish(range(len(self._batch)), [Finish.cut] * len(self._batch))

    def _check(self, request: GenerationRequest) -> None:
        if request.limit < 1:
            raise ValueError(f"a generation request asks for {request.limit} tokens: its limit must be at least 1")
        self._check_loaded()
        self._check_length(request.context, request.limit)

    def _check_loaded(self) -> None:
        if self.version < 0:
            raise EngineLost("the engine has no complete weights", evidence="its last load failed", fix="load again")

    def _check_length(self, context: Ids, new: int) -> None:
        if not context:
            raise ValueError("the prompt is empty: give at least one token, after which the answer begins")
        shape = self._decoder.shape
        if max(context) >= shape.vocabulary_size or min(context) < 0:
            raise Usage(
                "a prompt contains a token that the model does not have",
                evidence=f"token {max(context)}, vocabulary of {shape.vocabulary_size}",
                fix="use the tokenizer that belongs to the model",
            )
        cache_tokens = self._kv_cache_tokens
        most = min(shape.max_positions, cache_tokens)
        if len(context) + new > most:
            fix = f"lower sampling.max_tokens to at most {most - len(context)}, or drop longer prompts"
            if cache_tokens < shape.max_positions and len(context) + new <= shape.max_positions:
                fix = f"raise engine.kv_cache_tokens to {len(context) + new} or more"
            elif len(context) >= most:
                fix = "shorten the prompt: it leaves no room for an answer"
            raise Usage(
                f"a prompt of {len(context)} tokens and an answer of up to {new} do not fit",
                evidence=f"the model has {shape.max_positions} positions, engine.kv_cache_tokens is {cache_tokens}",
                fix=fix,
            )


def _prefix_tokens(contexts: Iterable[ContextKey]) -> int:
    """The number of cached tokens in the prefixes of these prompts."""
    return sum(common_prefix_len(len(ids)) for _, ids in contexts)
