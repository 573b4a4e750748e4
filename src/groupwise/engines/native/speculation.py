"""Speculative decoding: earlier answers propose the next tokens, and one forward pass checks several of them.

A row draws each token as it would without drafts, from its own distribution and its own keyed random number. A proposed
token is accepted if it is that token. So drafts change the number of passes, and no bit of a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import AttentionLayout, Finish, Generation, Ids
from groupwise.engines.native.attention_layouts import ROWS, DecodeLayout, block_end, blocks, padded
from groupwise.engines.native.draft_store import DraftStore
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.native.running_batch import PendingRequest, RunningBatch
from groupwise.engines.native.unique_sequences import UniqueSequences
from groupwise.models import LanguageModel, Tokenizer

__all__ = ["SpeculativeEngine"]


@dataclass(frozen=True, slots=True)
class DraftDecodeLayout:
    """The attention layout if several new tokens of a sequence are forwarded at once.

    `cache_writes` are the index of a block of the cache, the sequences, the slots in the block, and the sequences from
    which the keys and values come.
    """

    decode_layout: DecodeLayout
    cache_writes: Sequence[tuple[int, Tensor, Tensor, Tensor]]

    @property
    def positions(self) -> Int[Tensor, " n"]:
        return self.decode_layout.positions

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
        for block, to, at, source in self.cache_writes:
            keys, values = self.decode_layout.cache[block]
            keys[layer][to, :, at], values[layer][to, :, at] = k[source], v[source]
        return self.decode_layout.attend(layer, q, k, v, window=window, softcap=softcap)


class DraftedSequences(UniqueSequences):
    """The engine's distinct sequences, to which one forward pass adds drafted continuations as further sequences."""

    def __init__(self, decoder: LanguageModel, *, max_num_seqs: int, kv_cache_tokens: int) -> None:
        super().__init__(decoder, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self._max_num_seqs, self._kv_cache_tokens = max_num_seqs, kv_cache_tokens
        self._ancestors: list[tuple[int, int]] = []

    def add_drafts(self, proposals: Sequence[tuple[int, Ids]]) -> dict[tuple[int, int], int]:
        """Add a drafted continuation for each of these sequences, while there is room. Returns their indices.

        The key of a continuation is the index of the sequence before it, and its token. `forward` computes all of
        them, and `split` removes those without rows.
        """
        n, children, parents = len(self), dict[tuple[int, int], int](), list[tuple[int, int]]()
        deepest = self.last_slot + 1 + max((len(tokens) for _, tokens in proposals), default=0)
        room = min(self._max_num_seqs, self._kv_cache_tokens // block_end(deepest)) - n
        for sequence, tokens in proposals:
            for token in tokens:
                if (sequence, token) not in children:
                    if len(parents) >= room:
                        break
                    children[sequence, token] = n + len(parents)
                    parents.append((sequence, token))
                sequence = children[sequence, token]
        self._fork(parents)
        return children

    def layout(self) -> AttentionLayout:
        if not self._ancestors:
            return self.decode_layout()
        to, source = torch.tensor(self._ancestors, device=self.cache_slot.device).T
        cache_slot, writes = self.cache_slot[source], []
        for index, c in enumerate(blocks(self.last_slot + 1)):
            inside = (cache_slot >= c.start) & (cache_slot < c.stop)
            if bool(inside.any()):
                writes.append((index, to[inside], cache_slot[inside] - c.start, source[inside]))
        return DraftDecodeLayout(self.decode_layout(), writes)

    def _fork(self, parents: Sequence[tuple[int, int]]) -> None:
        """Add a sequence for each (sequence before it, token), with a copy of the cache of the one it began with."""
        n, roots, self._ancestors = len(self), list[int](), []
        before: dict[int, tuple[int, ...]] = {}
        for i, (parent, token) in enumerate(parents, n):
            before[i] = (*before.get(parent, ()), parent)
            roots.append(before[i][0])
            self._ancestors += [(i, source) for source in before[i]]
            self.prefixes.append(self.prefixes[parent])
            self.token[i] = token
            self.position[i], self.cache_slot[i] = self.position[parent] + 1, self.cache_slot[parent] + 1
        if parents:
            self._common_prefixes = None
            device = self.cache_slot.device
            self.cache.allocate(padded(len(self), ROWS), self.last_slot + 1, n)
            new, root = torch.arange(n, len(self), device=device), torch.tensor(roots, device=device)
            self.cache.copy(new, root, self.last_slot)


class DraftedBatch(RunningBatch):
    """The sequences being generated: each takes several tokens per forward pass, as far as its draft proposed them."""

    sequences: DraftedSequences

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int, kv_cache_tokens: int,
        window: int, drafts: DraftStore,
    ) -> None:  # fmt: skip
        super().__init__(decoder, tokenizer, seed=seed, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self.sequences = DraftedSequences(decoder, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self.window, self.drafts, self.passes, self.accepted = window, drafts, 0, 0

    @torch.inference_mode()
    def decode(self) -> list[tuple[PendingRequest, Generation]]:
        """Run one forward pass, in which each row gets at least one token. Removes and returns finished requests."""
        n = len(self.running)
        self.sequences.allocate(n, self.sequences.last_slot + 1)
        children = self.sequences.add_drafts(self._proposals(n))
        logits = self.sequences.forward()
        self.passes += 1
        active, finished = torch.arange(n, device=self.newest.device), dict[int, Finish]()
        while len(active):
            token, logp = self._sample_tokens(logits, n)
            if self.with_top:
                self._record_likeliest(logits, active.tolist())
            self._append_to(active, token, logp)
            ended = self.end_tokens[token]
            if self.with_stop_strings:
                ended = ended | self._completes_stop(ended)
            over = ended | (self.length[:n] >= self.limit[:n])
            finished |= {r: Finish.stop if ended[r] else Finish.length for r in active.tolist() if over[r]}
            active = self._accepted(active[~over[active]], token, children)
        return self.finish(list(finished), list(finished.values()))

    def _proposals(self, n: int) -> list[tuple[int, Ids]]:
        """For each row with a draft, its sequence and the draft's next tokens, fewer than the row may still take."""
        lengths, sequences = self.length[:n].tolist(), self.sequence[:n].tolist()
        proposals = []
        for r, pending in enumerate(self.running):
            tokens = tuple(self.tokens[r, : lengths[r]].tolist())
            most = min(self.window, pending.request.limit - lengths[r] - 1)
            if most > 0 and (draft := self.drafts.propose(pending.request, tokens, most)):
                proposals.append((sequences[r], draft))
        return proposals

    def _append_to(self, rows: Int[Tensor, " m"], token: Int[Tensor, " n"], logp: Float[Tensor, " n"]) -> None:
        """Append the newest token of these rows."""
        if int(self.length[rows].max()) >= self.tokens.shape[1]:
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)], 1)
            self.logp = torch.cat([self.logp, torch.zeros_like(self.logp)], 1)
        self.tokens[rows, self.length[rows]] = token[rows]
        self.logp[rows, self.length[rows]] = logp[rows].to(self.logp.dtype)
        self.newest[rows] = token[rows]
        self.length[rows] += 1
        self.at[rows.tolist()] += 1

    def _accepted(
        self, rows: Int[Tensor, " m"], token: Int[Tensor, " n"], children: Mapping[tuple[int, int], int]
    ) -> Int[Tensor, " k"]:
        """The rows whose newest token was in their draft. Their logits after it belong to another sequence."""
        pairs = zip(self.sequence[rows].tolist(), token[rows].tolist())
        found = [(r, children[pair]) for r, pair in zip(rows.tolist(), pairs) if pair in children]
        accepted = torch.tensor([r for r, _ in found], dtype=torch.long, device=rows.device)
        self.accepted += len(found)
        self.sequence[accepted] = torch.tensor([s for _, s in found], dtype=torch.long, device=rows.device)
        return accepted


class SpeculativeEngine(NativeEngine):
    """A `NativeEngine` that checks up to `window` tokens of a draft in a forward pass. Its samples are the same.

    Drafts are its own earlier generations after the same context, up to `drafts` of them, also from older weights. They
    use rows and cache tokens that no request needs.
    """

    def __init__(
        self, decoder: LanguageModel, tokenizer: Tokenizer, *, seed: int, max_num_seqs: int = 256,
        kv_cache_tokens: int = 1 << 20,
        window: int = 8, drafts: int = 4096,
    ) -> None:  # fmt: skip
        super().__init__(decoder, tokenizer, seed=seed, max_num_seqs=max_num_seqs, kv_cache_tokens=kv_cache_tokens)
        self._drafts, self._reported = DraftStore(drafts), (0, 0)
        self._batch = self._drafted = DraftedBatch(
            self._model,
            tokenizer,
            seed=seed,
            max_num_seqs=max_num_seqs,
            kv_cache_tokens=kv_cache_tokens,
            window=window,
            drafts=self._drafts,
        )

    @property
    def passes(self) -> int:
        """The number of decoding forward passes so far. Without drafts, each adds one token to each row."""
        return self._drafted.passes

    @property
    def accepted(self) -> int:
        """The number of generated tokens so far that a draft proposed. Each saved its row one forward pass."""
        return self._drafted.accepted

    def figures(self) -> dict[str, float]:
        """The passes, and the accepted tokens of drafts, since the last call, by metric."""
        now = self.passes, self.accepted
        passes, accepted = (new - old for new, old in zip(now, self._reported))
        self._reported = now
        return {"engine/0/passes": float(passes), "engine/0/accepted": float(accepted)}

    def _resolve(self, finished: Sequence[tuple[PendingRequest, Generation]]) -> None:
        for pending, generation in finished:
            self._drafts.add(pending.request, generation.tokens)
        super()._resolve(finished)
