"""The rows that an engine is generating, side by side in arrays: what one more token for all of them takes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Finish, Generation, GenerationRequest, Sampling
from groupwise.models import Experts, Model, Routes, Tokenizer, choose, lineage, logprob_dtype, truncated, uniform
from groupwise.rollout.layouts import ROWS, KeysValues, padded, room, shareable
from groupwise.rollout.routes import Written
from groupwise.rollout.unique_sequences import UniqueSequences

Distribution = tuple[float, float, int, float, int]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An ask on its way, and the future that its asker awaits."""

    ask: GenerationRequest
    answer: asyncio.Future[Generation]
    routes: tuple[bytes, ...] = ()
    """Experts that the context but its last token went to, once it is read."""

    @property
    def reach(self) -> int:
        """Places that the row may come to fill with its own, beside what it reads in common."""
        return room(len(self.ask.context) + self.ask.limit - shareable(len(self.ask.context)))


class Rows:
    """Live rows are 0 to n; a row that leaves is replaced by the last, so no product is spent on holes."""

    def __init__(
        self, decoder: Model, tokenizer: Tokenizer, *, seed: int, rows: int, cache_tokens: int,
        experts: Experts | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.seed = tokenizer, seed
        shape, weight = decoder.shape, next(decoder.parameters())
        self.sequences = UniqueSequences(decoder, most=rows, cache_tokens=cache_tokens)
        self.jobs: list[Job] = []
        self.distributions: list[Distribution] = []
        self.stopping = 0
        rows = padded(rows, ROWS)
        on = {"dtype": torch.long, "device": weight.device}
        self.sequence, self.newest, self.made, self.limit = (torch.zeros(rows, **on) for _ in range(4))
        self.tokens = torch.zeros(rows, 64, **on)
        self.logp = torch.zeros(rows, 64, dtype=torch.float64, device=weight.device)
        self.written = Written(experts, rows, weight.device) if experts else None
        self.ends = torch.zeros(shape.vocabulary, dtype=torch.bool, device=weight.device)
        self.ends[[t for t in tokenizer.eos if t < shape.vocabulary]] = True
        # What random numbers are keyed by stays beside the generator, on the host.
        self.draw, self.stream = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
        self.at, self.distribution = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def reach(self) -> int:
        """Places of its own that the longest row may come to fill."""
        return max((job.reach for job in self.jobs), default=0)

    def enter(self, jobs: Sequence[Job], known: KeysValues | None) -> None:
        """Asks with one context become rows; `known` is all of that but its last token, which is read next."""
        asks = [job.ask for job in jobs]
        n = len(self.jobs)
        own = slice(n, n + len(asks))
        self.sequence[own] = self.sequences.enter(asks[0].context, known)
        self.newest[own] = asks[0].context[-1]
        self.made[own] = 0
        self.limit[own] = torch.tensor([ask.limit for ask in asks], device=self.limit.device)
        self.draw[own] = [ask.draw for ask in asks]
        self.stream[own] = [lineage(ask.stream) for ask in asks]
        self.at[own] = [ask.at for ask in asks]
        self.distribution[own] = [self._distribution_of(ask) for ask in asks]
        self.stopping += sum(bool(ask.sampling.stop) for ask in asks)
        self.jobs.extend(jobs)

    @torch.inference_mode()
    def advance(self) -> list[tuple[Job, Generation]]:
        """One more token for every row; the jobs that are done with it leave. Versions are the caller's to write."""
        n = len(self.jobs)
        self.sequences.grow(n, self.sequences.longest + 1)
        routes = Routes(self.written.experts) if self.written else None
        token, logp = self._drawn(self.sequences.forward(routes), n)
        if self.written is not None and routes is not None:
            self.written.write(routes, self.sequence[:n], self.made[:n])
        self._write(token[:n], logp[:n])
        ended = self.ends[token[:n]]
        if self.stopping:
            ended = ended | self._stopped(ended)
        done = (ended | (self.made[:n] >= self.limit[:n])).nonzero().squeeze(1)
        return self.leave(done.tolist(), [Finish.stop if e else Finish.length for e in ended[done].tolist()])

    @torch.inference_mode()
    def leave(self, rows: Sequence[int], finishes: Sequence[Finish]) -> list[tuple[Job, Generation]]:
        """These rows' answers as they stand; the rows are free again."""
        made = self.made[list(rows)].tolist()
        gone = [
            (self.jobs[r], Generation(
                tokens=tuple(self.tokens[r, :m].tolist()), logp=tuple(self.logp[r, :m].tolist()), versions=(),
                finish=finish, routes=self.jobs[r].routes + self.written.of(r, m) if self.written and m else (),
            ))
            for r, m, finish in zip(rows, made, finishes)
        ]  # fmt: skip
        self.stopping -= sum(bool(job.ask.sampling.stop) for job, _ in gone)
        self._close(set(rows))
        return gone

    def _close(self, holes: set[int]) -> None:
        """Move the last rows into the holes; the others' stems part where they disagree."""
        n = len(self.jobs)
        left = n - len(holes)
        to = sorted(r for r in holes if r < left)
        source = [r for r in range(left, n) if r not in holes]
        if to:
            for x in (self.sequence, self.newest, self.made, self.limit, self.tokens, self.logp):
                x[to] = x[source]
            for x in (self.draw, self.stream, self.at, self.distribution):
                x[to] = x[source]
            if self.written is not None:
                self.written.move(to, source)
            for r, s in zip(to, source):
                self.jobs[r] = self.jobs[s]
        del self.jobs[left:]
        self.sequence[:left] = self.sequences.part(self.sequence[:left], self.newest[:left])

    def _drawn(self, logits: Float[Tensor, "stems v"], n: int) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """A token and its log-prob for every row: each row under its own law."""
        stem = self.sequence[:n]
        token, logp = torch.zeros_like(stem), torch.zeros(n, dtype=logprob_dtype(logits.dtype), device=logits.device)
        for number in sorted(set(self.distribution[:n].tolist())):
            temperature, top_p, top_k, min_p, purpose = self.distributions[number]
            own = self.distribution[:n] == number
            u = np.zeros(int(own.sum()))
            if temperature > 0:
                u = uniform((self.seed, purpose), self.draw[:n][own], self.stream[:n][own], self.at[:n][own])
            rows = torch.from_numpy(own.nonzero()[0]).to(stem.device)
            law = truncated(logits, Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p))
            token[rows] = chosen = choose(law, torch.from_numpy(u).to(law.device), stem[rows])
            logp[rows] = law[stem[rows], chosen]
        return token, logp

    def _write(self, token: Int[Tensor, " n"], logp: Float[Tensor, " n"]) -> None:
        n = len(token)
        made = self.made[:n]
        if int(made.max()) >= self.tokens.shape[1]:
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)], 1)
            self.logp = torch.cat([self.logp, torch.zeros_like(self.logp)], 1)
        row = torch.arange(n, device=token.device)
        self.tokens[row, made] = token
        self.logp[row, made] = logp.to(self.logp.dtype)
        self.newest[:n] = token
        self.made[:n] += 1
        self.at[:n] += np.uint64(1)

    def _stopped(self, ended: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows' newest token completes a stop string of theirs. Only rows that have one are looked at."""
        made = self.made.tolist()
        said = [
            bool(job.ask.sampling.stop) and not over and self._completes(job.ask, self.tokens[r, : made[r]])
            for r, (job, over) in enumerate(zip(self.jobs, ended.tolist()))
        ]
        return torch.tensor(said, device=ended.device)

    def _completes(self, ask: GenerationRequest, tokens: Int[Tensor, " n"]) -> bool:
        # A string of c characters has at most 4 c bytes, and a token at least one: no earlier token can belong to it.
        reach = 4 * max(map(len, ask.sampling.stop)) + 4
        newest = tokens[-reach:].tolist()
        earlier = ask.context[max(len(ask.context) - ask.at, len(ask.context) + len(newest) - reach) :]
        text, ends = self.tokenizer.decode_with_ends((*earlier, *newest))
        before = ends[-2] if len(ends) > 1 else 0
        return any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in ask.sampling.stop)

    def _distribution_of(self, ask: GenerationRequest) -> int:
        s = ask.sampling
        law = (s.temperature, s.top_p, s.top_k, s.min_p, ask.purpose)
        if law not in self.distributions:
            self.distributions.append(law)
        return self.distributions.index(law)
