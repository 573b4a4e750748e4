"""The rows that an engine is generating, side by side in arrays: what one more token for all of them takes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Ask, Finish, Sampling, Span
from groupwise.models import Model, Tokenizer, choose, lineage, truncated, uniform
from groupwise.rollout.cache import RowCache
from groupwise.rollout.layouts import ROWS, Common, Decode, KeysValues, padded, room, shareable

Law = tuple[float, float, int, float, int]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """An ask on its way, and the future that its asker awaits."""

    ask: Ask
    answer: asyncio.Future[Span]

    @property
    def reach(self) -> int:
        """Places that the row may come to fill with its own, beside what it reads in common."""
        return room(len(self.ask.context) + self.ask.limit - shareable(len(self.ask.context)))


class Rows:
    """Live rows are 0 to n; a row that leaves is replaced by the last, so no product is spent on holes."""

    def __init__(self, decoder: Model, tokenizer: Tokenizer, *, seed: int, rows: int, cache_tokens: int) -> None:
        self.decoder, self.tokenizer, self.seed = decoder, tokenizer, seed
        shape, weight = decoder.shape, next(decoder.parameters())
        self.cache = RowCache(
            shape.layers, shape.kv_heads, shape.head_dim,
            bound=cache_tokens, dtype=weight.dtype, device=weight.device,
        )  # fmt: skip
        self.jobs: list[Job] = []
        self.begins: list[KeysValues | None] = []
        self._common: list[Common] | None = []
        self.laws: list[Law] = []
        self.stopping = 0
        rows = padded(rows, ROWS)
        on = {"dtype": torch.long, "device": weight.device}
        self.token, self.position, self.place = (torch.zeros(rows, **on) for _ in range(3))
        self.made, self.limit = torch.zeros(rows, **on), torch.zeros(rows, **on)
        self.tokens = torch.zeros(rows, 64, **on)
        self.logp = torch.zeros(rows, 64, dtype=torch.float64, device=weight.device)
        self.ends = torch.zeros(shape.vocabulary, dtype=torch.bool, device=weight.device)
        self.ends[[t for t in tokenizer.eos if t < shape.vocabulary]] = True
        # What random numbers are keyed by stays beside the generator, on the host.
        self.draw, self.stream = np.zeros(rows, np.uint64), np.zeros(rows, np.uint64)
        self.at, self.law = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def longest(self) -> int:
        """The furthest place of its own that a live row stands at."""
        return int(self.place[: len(self.jobs)].max()) if self.jobs else 0

    @property
    def common(self) -> list[Common]:
        """The live rows by what they read in common."""
        if self._common is None:
            alike: dict[int, tuple[KeysValues, list[int]]] = {}
            for row, known in enumerate(self.begins):
                if known is not None:
                    alike.setdefault(id(known[0]), (known, []))[1].append(row)
            self._common = [Common.of(known, rows, self.token.device) for known, rows in alike.values()]
        return self._common

    def enter(self, jobs: Sequence[Job], known: KeysValues | None) -> None:
        """Asks with one context become rows; `known` is all of that but its last token, which is read next."""
        asks = [job.ask for job in jobs]
        n = len(self.jobs)
        own = slice(n, n + len(asks))
        self.token[own] = asks[0].context[-1]
        self.position[own] = len(asks[0].context) - 1
        common = shareable(len(asks[0].context))
        self.place[own] = len(asks[0].context) - 1 - common
        if known is not None:
            keys, values = known
            self.cache.enter(n, len(asks), keys[:, :, common:], values[:, :, common:])
        begin = (known[0][:, :, :common], known[1][:, :, :common]) if known is not None and common else None
        self.begins.extend([begin] * len(asks))
        self._common = None
        self.made[own] = 0
        self.limit[own] = torch.tensor([ask.limit for ask in asks], device=self.limit.device)
        self.draw[own] = [ask.draw for ask in asks]
        self.stream[own] = [lineage(ask.stream) for ask in asks]
        self.at[own] = [ask.at for ask in asks]
        self.law[own] = [self._law_of(ask) for ask in asks]
        self.stopping += sum(bool(ask.sampling.stop) for ask in asks)
        self.jobs.extend(jobs)

    @torch.inference_mode()
    def tick(self) -> list[tuple[Job, Span]]:
        """One more token for every row; the jobs that are done with it leave. Versions are the caller's to write."""
        n = len(self.jobs)
        full = padded(n, ROWS)
        longest = self.longest
        self.cache.grow(full, longest + 1, n)
        layout = Decode.of(
            self.cache.keys, self.cache.values, self.position[:full], self.place[:n], longest, self.common
        )
        logits = self.decoder.head(self.decoder(self.token[:full], layout))
        token, logp = self._drawn(logits, n)
        self._write(token[:n], logp[:n])
        ended = self.ends[token[:n]]
        if self.stopping:
            ended = ended | self._stopped(ended)
        done = (ended | (self.made[:n] >= self.limit[:n])).nonzero().squeeze(1)
        if not len(done):
            return []
        return self.leave(done.tolist(), [Finish.stop if e else Finish.length for e in ended[done].tolist()])

    def leave(self, rows: Sequence[int], finishes: Sequence[Finish]) -> list[tuple[Job, Span]]:
        """These rows' answers as they stand; the rows are free again."""
        made = self.made[list(rows)].tolist()
        gone = [
            (self.jobs[r], Span(
                tokens=tuple(self.tokens[r, :m].tolist()), logp=tuple(self.logp[r, :m].tolist()), versions=(),
                finish=finish,
            ))
            for r, m, finish in zip(rows, made, finishes)
        ]  # fmt: skip
        self.stopping -= sum(bool(job.ask.sampling.stop) for job, _ in gone)
        self._close(set(rows))
        return gone

    def _close(self, holes: set[int]) -> None:
        """Move the last rows into the holes; what is behind them becomes inert."""
        n = len(self.jobs)
        left = n - len(holes)
        to = sorted(r for r in holes if r < left)
        source = [r for r in range(left, n) if r not in holes]
        if to:
            self.cache.move(to, source, self.longest)
            for x in (self.token, self.position, self.place, self.made, self.limit, self.tokens, self.logp):
                x[to] = x[source]
            for x in (self.draw, self.stream, self.at, self.law):
                x[to] = x[source]
            for r, s in zip(to, source):
                self.jobs[r], self.begins[r] = self.jobs[s], self.begins[s]
        del self.jobs[left:], self.begins[left:]
        self._common = None
        self.position[left:n] = 0

    def _drawn(self, logits: Float[Tensor, "full v"], n: int) -> tuple[Int[Tensor, " full"], Float[Tensor, " full"]]:
        """A token and its log-prob for every row: each row under its own law."""
        token = logp = None
        for number in sorted(set(self.law[:n].tolist())):
            temperature, top_p, top_k, min_p, purpose = self.laws[number]
            sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
            u = np.zeros(len(logits))
            if temperature > 0:
                u[:n] = uniform((self.seed, purpose), self.draw[:n], self.stream[:n], self.at[:n])
            law = truncated(logits, sampling)
            chosen = choose(law, torch.from_numpy(u).to(law.device))
            said = law.gather(1, chosen[:, None]).squeeze(1).double()
            if token is None or logp is None:
                token, logp = chosen, said
            else:
                own = torch.from_numpy(self.law[: len(logits)] == number).to(law.device)
                token, logp = torch.where(own, chosen, token), torch.where(own, said, logp)
        assert token is not None and logp is not None
        return token, logp

    def _write(self, token: Int[Tensor, " n"], logp: Float[Tensor, " n"]) -> None:
        n = len(token)
        made = self.made[:n]
        if int(made.max()) >= self.tokens.shape[1]:
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)], 1)
            self.logp = torch.cat([self.logp, torch.zeros_like(self.logp)], 1)
        row = torch.arange(n, device=token.device)
        self.tokens[row, made] = token
        self.logp[row, made] = logp
        self.token[:n] = token
        self.made[:n] += 1
        self.position[:n] += 1
        self.place[:n] += 1
        self.at[:n] += np.uint64(1)

    def _stopped(self, ended: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Which rows' newest token completes a stop string of theirs. Only rows that have one are looked at."""
        made = self.made.tolist()
        said = [
            bool(job.ask.sampling.stop) and not over and self._completes(job.ask, self.tokens[r, : made[r]].tolist())
            for r, (job, over) in enumerate(zip(self.jobs, ended.tolist()))
        ]
        return torch.tensor(said, device=ended.device)

    def _completes(self, ask: Ask, tokens: list[int]) -> bool:
        # A string of c characters has at most 4 c bytes, and a token at least one: no earlier token can belong to it.
        reach = 4 * max(map(len, ask.sampling.stop)) + 4
        text, ends = self.tokenizer.read(([*ask.context[len(ask.context) - ask.at :], *tokens])[-reach:])
        before = ends[-2] if len(ends) > 1 else 0
        return any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in ask.sampling.stop)

    def _law_of(self, ask: Ask) -> int:
        s = ask.sampling
        law = (s.temperature, s.top_p, s.top_k, s.min_p, ask.purpose)
        if law not in self.laws:
            self.laws.append(law)
        return self.laws.index(law)
