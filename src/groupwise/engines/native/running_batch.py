"""The running requests of the engine as arrays, a row for each, and one decoding step for all of them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from groupwise.data import Finish, Generation, GenerationRequest, Likeliest, Sampling
from groupwise.engines.native.attention_layouts import ROWS, KeysValues, block_end, common_prefix_len, padded
from groupwise.engines.native.routes import RowRoutes
from groupwise.engines.native.unique_sequences import UniqueSequences
from groupwise.models import (
    ChosenExperts,
    LanguageModel,
    MixtureOfExpertsSizes,
    Tokenizer,
    choose,
    lineage,
    logprob_dtype,
    logprobs,
    truncated,
    uniform,
)

Distribution = tuple[float, float, int, float, int]
"""Temperature, top_p, top_k, min_p, and the purpose (training, evaluation, ...) that keys the random numbers."""

AHEAD = 16
"""Tokens for which a row's random numbers are computed at once."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """A generation request and the future that its caller awaits."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    prompt_routes: tuple[bytes, ...] = ()
    """The expert choices for the prompt without its last token, once it is prefilled."""
    collected_top_logprobs: list[Likeliest] = field(default_factory=list)
    """The likeliest tokens at each generated position so far, if the request asks for them."""

    @property
    def max_slots(self) -> int:
        """The most cache slots that the request can need, in whole blocks, without the shared prompt prefix."""
        context = len(self.request.context)
        return block_end(context + self.request.limit - common_prefix_len(context))


class RunningBatch:
    """The running requests, in rows without gaps: the last row moves to the index of one that finishes."""

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int, kv_cache_tokens: int,
        experts: MixtureOfExpertsSizes | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.seed = tokenizer, seed
        shape, weight = decoder.shape, next(decoder.parameters())
        self.sequences = UniqueSequences(decoder, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self.running: list[PendingRequest] = []
        self.distributions: list[Distribution] = []
        self.with_stop_strings = self.with_top = 0
        rows = padded(max_num_seqs, ROWS)
        long = {"dtype": torch.long, "device": weight.device}
        self.sequence, self.newest, self.length, self.limit = (torch.zeros(rows, **long) for _ in range(4))
        self.tokens = torch.zeros(rows, 64, **long)
        self.logp = torch.zeros(rows, 64, dtype=torch.float64, device=weight.device)
        self.routes = RowRoutes(experts, rows, weight.device) if experts else None
        self.end_tokens = torch.zeros(shape.vocabulary_size, dtype=torch.bool, device=weight.device)
        self.end_tokens[[t for t in tokenizer.eos_ids if t < shape.vocabulary_size]] = True
        # The keys of the random numbers stay on the host, where the generator runs.
        self.draw, self.stream = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
        self.at, self.distribution = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self.ahead, self.first = np.zeros((rows, AHEAD)), np.full(rows, -AHEAD)

    def __len__(self) -> int:
        return len(self.running)

    @property
    def max_slots(self) -> int:
        """The most cache slots that any running request can need."""
        return max((pending.max_slots for pending in self.running), default=0)

    def add(self, scheduled: Sequence[PendingRequest], cached: KeysValues | None) -> None:
        """Add rows for requests with one prompt. `cached` holds the prompt's keys and values but the last token's."""
        requests = [pending.request for pending in scheduled]
        n = len(self.running)
        new = slice(n, n + len(requests))
        self.sequence[new] = self.sequences.add(requests[0].context, cached)
        self.newest[new] = requests[0].context[-1]
        self.length[new] = 0
        self.limit[new] = torch.tensor([request.limit for request in requests], device=self.limit.device)
        self.draw[new] = [request.draw_id for request in requests]
        self.stream[new] = [lineage(request.stream) for request in requests]
        self.at[new] = [request.already_generated_count for request in requests]
        self.distribution[new] = [self._distribution_of(request) for request in requests]
        self.first[new] = -AHEAD
        self.with_stop_strings += sum(bool(request.sampling.stop) for request in requests)
        self.with_top += sum(bool(request.num_top_logprobs) for request in requests)
        self.running.extend(scheduled)

    def clear(self) -> None:
        """Free the memory of the cache. No request is running."""
        self.sequences.cache.clear()

    @torch.inference_mode()
    def decode(self) -> list[tuple[PendingRequest, Generation]]:
        """Sample one token for each row. Removes and returns finished requests; the caller fills in their versions."""
        n = len(self.running)
        self.sequences.allocate(n, self.sequences.last_slot + 1)
        routes = ChosenExperts(self.routes.experts) if self.routes else None
        logits = self.sequences.forward(routes)
        token, logp = self._sample_tokens(logits, n)
        if self.with_top:
            self._record_likeliest(logits, range(n))
        if self.routes is not None and routes is not None:
            self.routes.write(routes, self.sequence[:n], self.length[:n])
        self._append(token[:n], logp[:n])
        ended = self.end_tokens[token[:n]]
        if self.with_stop_strings:
            ended = ended | self._completes_stop(ended)
        done = (ended | (self.length[:n] >= self.limit[:n])).nonzero().squeeze(1)
        return self.finish(done.tolist(), [Finish.stop if e else Finish.length for e in ended[done].tolist()])

    @torch.inference_mode()
    def finish(self, rows: Sequence[int], finishes: Sequence[Finish]) -> list[tuple[PendingRequest, Generation]]:
        """Remove these rows and return their generations so far."""
        lengths = self.length[list(rows)].tolist()
        finished = [
            (self.running[r], Generation(
                tokens=tuple(self.tokens[r, :n].tolist()), logp=tuple(self.logp[r, :n].tolist()), versions=(),
                finish=finish, routes=self.running[r].prompt_routes + self.routes.of(r, n) if self.routes and n else (),
                top_logprobs=tuple(self.running[r].collected_top_logprobs),
            ))
            for r, n, finish in zip(rows, lengths, finishes, strict=True)
        ]  # fmt: skip
        self.with_stop_strings -= sum(bool(pending.request.sampling.stop) for pending, _ in finished)
        self.with_top -= sum(bool(pending.request.num_top_logprobs) for pending, _ in finished)
        self._condense(set(rows))
        return finished

    def _condense(self, removed: set[int]) -> None:
        """Move the last rows to the indices of removed ones, and split sequences whose rows now differ."""
        n = len(self.running)
        left = n - len(removed)
        to = sorted(r for r in removed if r < left)
        source = [r for r in range(left, n) if r not in removed]
        if to:
            for x in (self.sequence, self.newest, self.length, self.limit, self.tokens, self.logp):
                x[to] = x[source]
            for x in (self.draw, self.stream, self.at, self.distribution, self.ahead, self.first):
                x[to] = x[source]
            if self.routes is not None:
                self.routes.move(to, source)
            for r, s in zip(to, source, strict=True):
                self.running[r] = self.running[s]
        del self.running[left:]
        self.sequence[:left] = self.sequences.split(self.sequence[:left], self.newest[:left])

    def _sample_tokens(
        self, logits: Float[Tensor, "sequences v"], n: int
    ) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """A token and its log-prob for each row, from the row's own distribution."""
        sequence = self.sequence[:n]
        token, logp = (
            torch.zeros_like(sequence),
            torch.zeros(n, dtype=logprob_dtype(logits.dtype), device=logits.device),
        )
        u = self._uniform_numbers(n)
        for index in sorted(set(self.distribution[:n].tolist())):
            temperature, top_p, top_k, min_p, _ = self.distributions[index]
            mask = self.distribution[:n] == index
            rows = torch.from_numpy(mask.nonzero()[0]).to(sequence.device)
            logprobs = truncated(logits, Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p))
            token[rows] = chosen = choose(logprobs, torch.from_numpy(u[mask]).to(logprobs.device), sequence[rows])
            logp[rows] = logprobs[sequence[rows], chosen]
        return token, logp

    def _uniform_numbers(self, n: int) -> NDArray[np.float64]:
        """Each row's random number for its next token; 0 at temperature 0.

        A row's numbers are computed for `AHEAD` tokens at once, from position `first` on: the generator is many small
        operations.
        """
        at = self.at[:n].astype(np.int64)
        empty = at - self.first[:n] >= AHEAD
        for index in set(self.distribution[:n][empty].tolist()):
            temperature, *_, purpose = self.distributions[index]
            rows = (empty & (self.distribution[:n] == index)).nonzero()[0]
            if temperature > 0:
                positions = (at[rows, None] + np.arange(AHEAD)).ravel()
                draw, stream = (np.repeat(x[rows], AHEAD) for x in (self.draw, self.stream))
                self.ahead[rows] = uniform((self.seed, purpose), draw, stream, positions).reshape(-1, AHEAD)
            else:
                self.ahead[rows] = 0
            self.first[rows] = at[rows]
        return self.ahead[np.arange(n), at - self.first[:n]]

    def _record_likeliest(self, logits: Float[Tensor, "sequences v"], rows: Iterable[int]) -> None:
        """Record the likeliest next tokens of each of these rows, if its request asks for them."""
        for r in rows:
            pending = self.running[r]
            if pending.request.num_top_logprobs:
                best = logprobs(logits[self.sequence[r : r + 1]]).topk(
                    min(pending.request.num_top_logprobs, logits.shape[1])
                )
                pending.collected_top_logprobs.append(tuple(zip(best.indices[0].tolist(), best.values[0].tolist())))

    def _append(self, token: Int[Tensor, " n"], logp: Float[Tensor, " n"]) -> None:
        n = len(token)
        length = self.length[:n]
        if int(length.max()) >= self.tokens.shape[1]:
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)], 1)
            self.logp = torch.cat([self.logp, torch.zeros_like(self.logp)], 1)
        row = torch.arange(n, device=token.device)
        self.tokens[row, length] = token
        self.logp[row, length] = logp.to(self.logp.dtype)
        self.newest[:n] = token
        self.length[:n] += 1
        self.at[:n] += np.uint64(1)

    def _completes_stop(self, ended: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Whether each row's newest token completes one of its stop strings; False for rows that have already ended."""
        lengths = self.length.tolist()
        stopped = [
            bool(pending.request.sampling.stop)
            and not end
            and completes_stop(self.tokenizer, pending.request, self.tokens[r, : lengths[r]].tolist())
            for r, (pending, end) in enumerate(zip(self.running, ended.tolist()))
        ]
        return torch.tensor(stopped, device=ended.device)

    def _distribution_of(self, request: GenerationRequest) -> int:
        s = request.sampling
        distribution = (s.temperature, s.top_p, s.top_k, s.min_p, request.random_purpose)
        if distribution not in self.distributions:
            self.distributions.append(distribution)
        return self.distributions.index(distribution)


def completes_stop(tokenizer: Tokenizer, request: GenerationRequest, tokens: Sequence[int]) -> bool:
    """Whether the newest of a request's generated tokens completes one of its stop strings."""
    # A string of c characters has at most 4 c bytes and a token at least one, so earlier tokens cannot be in it.
    window = 4 * max(map(len, request.sampling.stop)) + 4
    newest = tokens[-window:]
    earlier = request.context[
        max(len(request.context) - request.already_generated_count, len(request.context) + len(newest) - window) :
    ]
    text, ends = tokenizer.decode_with_ends((*earlier, *newest))
    before = ends[-2] if len(ends) > 1 else 0
    return any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in request.sampling.stop)
