"""The engine in this process: asks become rows of one batch, each enters and leaves at any token."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

import torch
from torch import Tensor

from groupwise.data import Finish, Generation, GenerationRequest, Ids, Usage
from groupwise.models import Experts, Model, Routes, Tokenizer, blocked, forget, logprobs
from groupwise.rollout.cache import PrefixCache
from groupwise.rollout.layouts import ROWS, Prefill, padded, shareable
from groupwise.rollout.routes import prompts
from groupwise.rollout.rows import Job, Rows

__all__ = ["NativeEngine"]

PACK = 8192
"""Tokens of contexts that are read in one forward, at most (a longer context alone)."""


class NativeEngine:
    """An `Engine` over one decoder. Its weights are the learner's own where `load` is given the decoder's own tensors.

    At most `rows` rows live at once, and live rows and remembered contexts hold at most `cache_tokens` tokens; asks
    beyond that wait in the order in which they came. The numbers of a sample do not depend on its mates: random ones
    are keyed, and on one thread the others are equal to the last bit (see `layouts`). Given the `experts` of its model,
    it writes down which of them tokens go to.
    """

    def __init__(
        self, decoder: Model, tokenizer: Tokenizer, *, seed: int, rows: int = 256, cache_tokens: int = 1 << 20,
        experts: Experts | None = None,
    ) -> None:  # fmt: skip
        self.version = 0
        self._decoder, self._bound, self._most = decoder, cache_tokens, rows
        self._quick = decoder if experts else blocked(decoder)  # routes are written by the modules themselves
        self._experts = experts
        self._rows = Rows(self._quick, tokenizer, seed=seed, rows=rows, cache_tokens=cache_tokens, experts=experts)
        self._prefixes = PrefixCache()
        self._waiting: deque[Job] = deque()
        self._ticker: asyncio.Task[None] | None = None
        self._left = False

    async def sample(self, ask: GenerationRequest) -> Generation:
        """The ask's next tokens. Usage for one that the model or the cache cannot hold; cancelling frees its row."""
        self._refuse(ask)
        job = Job(ask, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._run())
        try:
            return await job.answer
        except asyncio.CancelledError:
            self._left = True
            raise

    async def score(self, context: Ids, tokens: Ids) -> tuple[float, ...]:
        """The log-prob of each token after what stands before it, under the full law at temperature 1."""
        if not tokens:
            return ()
        self._fits(context, len(tokens))
        with torch.inference_mode():
            hidden = self._read([context + tokens[:-1]])[1][len(context) - 1 :][: len(tokens)]
            law = logprobs(self._quick.head(hidden))
            return tuple(law[range(len(tokens)), list(tokens)].tolist())

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Go on with these weights: running asks come back `cut` with what they have, remembered contexts are gone.

        ValueError for weights of another model.
        """
        own = self._decoder.state_dict()
        if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in weights.items()}:
            odd = sorted(own.keys() ^ weights.keys()) or [n for n, x in own.items() if x.shape != weights[n].shape]
            raise ValueError(f"weights of another model: {', '.join(odd[:5])}")
        self._answer(self._rows.leave(range(len(self._rows)), [Finish.cut] * len(self._rows)))
        with torch.no_grad():
            for name, x in own.items():
                if x.data_ptr() != weights[name].data_ptr():
                    x.copy_(weights[name])
        forget(self._quick)
        self._prefixes.clear()
        self._rows.sequences.cache.clear()
        self.version = version

    def prefill(self, contexts: Sequence[Ids]) -> None:
        """Read these contexts now."""
        for context in contexts:
            self._fits(context, 1)
        self._remember([context[:-1] for context in contexts])
        self._prefixes.trim(max(self._bound - self._held(), 0))

    async def _run(self) -> None:
        """One token after the other, until nobody waits."""
        try:
            while True:
                await asyncio.sleep(0)  # who has an answer may ask again before the next token
                self._dismiss()
                self._admit()
                if not self._rows.jobs:
                    return
                self._answer(self._rows.advance())
        except asyncio.CancelledError:
            self._fail(None)
            raise
        except Exception as error:
            self._fail(error)
        finally:
            forget(self._quick)  # memory that others need while nobody asks

    def _admit(self) -> None:
        """Those who wait become rows, first come first served, while there is room; equal contexts are read once."""
        if not self._waiting:
            return
        live, width = len(self._rows), self._rows.reach
        chosen: list[Job] = []
        common = {job.ask.context for job in self._rows.jobs}
        for job in islice(self._waiting, self._most - live):
            many, width = live + len(chosen) + 1, max(width, job.reach)
            common.add(job.ask.context)
            if many > 1 and padded(many, ROWS) * width + sum(shareable(len(c)) for c in common) > self._bound:
                break
            chosen.append(job)
        if not chosen:
            return
        self._remember([job.ask.context[:-1] for job in chosen])
        begins = (len(job.ask.context) - shareable(len(job.ask.context)) for job in chosen)
        longest = max(self._rows.sequences.longest + 1, *begins)
        with torch.inference_mode():
            self._rows.sequences.grow(live + len(chosen), longest)
            for context, jobs in groupby(chosen, key=lambda job: job.ask.context):
                routes = self._prefixes.routes.get(context[:-1], ())
                begun = [replace(job, routes=routes) for job in jobs]
                self._rows.enter(begun, self._prefixes[context[:-1]] if len(context) > 1 else None)
        for _ in chosen:
            self._waiting.popleft()
        self._prefixes.trim(max(self._bound - self._held(), 0))

    def _held(self) -> int:
        """Tokens that the live rows may come to hold."""
        common = {job.ask.context for job in self._rows.jobs}
        return padded(len(self._rows), ROWS) * self._rows.reach + sum(shareable(len(c)) for c in common)

    def _remember(self, contexts: Sequence[Ids]) -> None:
        """Read the contexts that are not remembered yet, those of one width side by side."""
        fresh = sorted({c for c in contexts if c and c not in self._prefixes}, key=lambda c: (len(c), c))
        pack: list[Ids] = []
        for i, context in enumerate(fresh):
            pack.append(context)
            if i + 1 == len(fresh) or sum(map(len, pack)) + len(fresh[i + 1]) > PACK:
                with torch.inference_mode():
                    routes = Routes(self._experts) if self._experts else None
                    layout, _ = self._read(pack, routes)
                    for known, (keys, values) in zip(pack, layout.cut()):
                        self._prefixes.put(known, keys, values)
                    if routes is not None:
                        self._prefixes.routes |= prompts(routes, pack, layout.widths)
                pack = []

    def _read(self, contexts: Sequence[Ids], routes: Routes | None = None) -> tuple[Prefill, Tensor]:
        layout = Prefill.of(contexts, next(self._decoder.parameters()).device)
        return layout, self._quick(layout.tokens, layout, **({"routes": routes} if routes else {}))

    def _answer(self, done: Sequence[tuple[Job, Generation]]) -> None:
        for job, span in done:
            if not job.answer.done():
                job.answer.set_result(replace(span, versions=(self.version,) * len(span.tokens)))

    def _dismiss(self) -> None:
        """Asks whose asker has gone away wait no more, and their rows are free again."""
        if self._left:
            self._waiting = deque(job for job in self._waiting if not job.answer.done())
            gone = [r for r, job in enumerate(self._rows.jobs) if job.answer.done()]
            self._rows.leave(gone, [Finish.cut] * len(gone))
            self._left = False

    def _fail(self, error: Exception | None) -> None:
        """Nobody waits for an engine that has stopped: each asker hears why."""
        for job in (*self._rows.jobs, *self._waiting):
            if not job.answer.done():
                if error is None:
                    job.answer.cancel()
                else:
                    job.answer.set_exception(error)
        self._waiting.clear()
        self._rows.leave(range(len(self._rows)), [Finish.cut] * len(self._rows))

    def _refuse(self, ask: GenerationRequest) -> None:
        if ask.limit < 1:
            raise ValueError(f"an ask for {ask.limit} tokens")
        self._fits(ask.context, ask.limit)

    def _fits(self, context: Ids, more: int) -> None:
        if not context:
            raise ValueError("a context is empty: the first token of an answer needs one that it follows")
        shape = self._decoder.shape
        if max(context) >= shape.vocabulary or min(context) < 0:
            raise Usage(
                "a prompt holds a token that the model does not know",
                evidence=f"token {max(context)}, vocabulary of {shape.vocabulary}",
                fix="use the tokenizer that belongs to the model",
            )
        most = min(shape.positions, self._bound)
        if len(context) + more > most:
            raise Usage(
                f"a prompt of {len(context)} tokens and an answer of up to {more} do not fit",
                evidence=f"the model sees {shape.positions} tokens, engine.cache_tokens is {self._bound}",
                fix=f"lower sampling.max_tokens to at most {max(most - len(context), 0)}, or drop longer prompts",
            )
