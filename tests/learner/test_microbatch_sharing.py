"""Microbatches on their way from rank 0: each rank gets its own, whole, by few sends; other messages are refused."""

import copy
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.advantages import centred, every_token
from groupwise.cluster.rank_messages import read_message
from groupwise.core import BadData
from groupwise.data import (
    Batch,
    Entropy,
    Finish,
    Logp,
    Outcome,
    Picture,
    Return,
    Sample,
    Segments,
    TokenMark,
    Verdict,
    pack,
)
from groupwise.learner.gradient_lane_sums import order_of
from groupwise.learner.microbatch_sharing import MicrobatchSharing, RankShare
from groupwise.models.vision.picture_store import PictureStore
from tests.learner.mailed_ranks import mailed
from tests.learner.small import rollouts

LANES = 4
MEASURES = (Logp("reference"), Entropy(), Return("critic"))
LENGTHS = [[12, 20, 1, 0], [3, 3, 15, 8], [1, 17, 20, 2]]
MICROBATCHES = ((0, 1), (2, 3, 4), (9, 11), (), (5,), (6, 7), (8, 10), ())
PICTURES = (Picture(1, 1, "aa", b"png"),)


@pytest.mark.parametrize("size", (2, 8, 64))
def test_a_message_takes_a_logarithm_of_the_ranks_in_sends_one_after_the_other(size: int) -> None:
    ranks, message, own = mailed(size, size), b"m" * 50, [bytes([rank]) * (10 * rank) for rank in range(size)]
    ranks[0].send(message, own)
    ranks[0].send(b"to all")
    for rank in ranks[1:]:
        assert rank.receive() == message + own[rank.rank] and rank.receive() == b"to all"
    hops = size.bit_length() - 1
    assert len(ranks[0].sent) == 2 * hops
    assert sum(ranks[0].sent[:hops]) == sum(map(len, own)) + hops * len(message)
    assert sum(len(rank.sent) for rank in ranks) == 2 * (size - 1)


def batch() -> Batch:
    """Ragged samples with views, marks, pictures and routes; their columns before a step."""
    found = []
    for rollout in rollouts(LENGTHS):
        samples = []
        for i, s in enumerate(rollout.samples):
            s = replace(
                s, text="é" * i, token_ends=tuple(range(len(s.tokens))), prompt_views={"hint": (1, 2 + i)},
                token_marks={"line": (0.5,)} if s.tokens else {}, counts={"calls": float(i)}, finish=Finish.cut,
                content_hash="pictures" if i == 2 else "", routes=(b"ab",) * i,
                verdict=Verdict(Outcome.scored, 0.25 * i, {"style": float("-inf") if i else 0.5}),
            )  # fmt: skip
            samples.append(s)
        found.append(replace(rollout, samples=tuple(samples)))
    b = pack(found, version=3, max_tokens=40)
    n = b.tokens
    b = b.having(
        reward=b.verdict_score, advantage=every_token(centred(b.verdict_score, b), b), logp_old=torch.rand(n).float(),
        weight=torch.ones(n), loss_share=torch.rand(n).double(), method_states={"kl": 0.5},
        measures={m: torch.rand(n).masked_fill(torch.rand(n) < 0.2, float("nan")) for m in MEASURES},
    )  # fmt: skip
    return b.having(routes=tuple((b"xy",) * (i % 3) for i in range(len(b))))


class Model(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)
        self.pictures = PictureStore()


class Party:
    """Rank 0 and the others with their ends of the sharing."""

    def __init__(self, size: int) -> None:
        self.ranks = mailed(size, LANES)
        self.ends = [MicrobatchSharing(rank, Model()) for rank in self.ranks]

    def shared(self, b: Batch, **settings: Any) -> list[RankShare]:
        """The shares of all ranks."""
        first = self.ends[0].hand_out(b, MICROBATCHES, do="step", **settings)
        return [first, *(self.received(rank) for rank in range(1, len(self.ranks)))]

    def received(self, rank: int) -> RankShare:
        content = self.ranks[rank].receive()
        assert content is not None
        return self.ends[rank].received(*read_message(content), MEASURES, {"kl": 0.5})


def bits(x: Any) -> Any:
    """A value as what two equal ones have in common: dtype, shape and bytes of tensors, texts of others."""
    if isinstance(x, Tensor):
        return x.dtype, x.shape, x.numpy().tobytes()
    if isinstance(x, Segments):
        return bits(x.index), x.count
    if isinstance(x, dict | MappingProxyType):
        return {key: bits(value) for key, value in x.items()}
    return repr(x)


@pytest.mark.parametrize("to_all", (False, True))
@pytest.mark.parametrize("size", (1, 2, 4))
def test_each_rank_has_its_own_microbatches_with_all_columns(size: int, to_all: bool) -> None:
    b = batch()
    for rank, share in enumerate(Party(size).shared(b, to_all=to_all)):
        order = [*order_of(mailed(size, LANES)[rank], rank, len(MICROBATCHES))]
        assert len(share.microbatches) == len(order) and len(share.step_microbatches) == to_all * len(MICROBATCHES)
        for part, i in [*zip(share.microbatches, order), *zip(share.step_microbatches, range(len(MICROBATCHES)))]:
            expected = b.take(MICROBATCHES[i])
            for field in fields(Batch):
                assert bits(getattr(part, field.name)) == bits(getattr(expected, field.name)), field.name
        assert share.token_counts == [b.take(m).tokens for m in MICROBATCHES]


def test_samples_and_pictures_are_sent_to_a_rank_once() -> None:
    party, b = Party(2), batch()
    party.ends[0].model.pictures.add("pictures", PICTURES)  # type: ignore[operator, union-attr]
    party.shared(b)
    assert party.ends[1].model.pictures["pictures"] == PICTURES  # type: ignore[index]
    (first,), party.ranks[0].sent = party.ranks[0].sent, []
    party.shared(b)
    (second,), party.ranks[0].sent = party.ranks[0].sent, []
    assert second < 0.6 * first
    party.ends[0].forget()
    again = party.shared(b.having(samples=tuple(map(copy.copy, b.samples))))
    assert repr(again[1].microbatches[0].samples) == repr(b.take(MICROBATCHES[1]).samples)
    assert len(party.ends[1]._received) == sum(len(m) for m in MICROBATCHES[1::2])


def test_a_rank_gets_no_other_ranks_samples() -> None:
    party, b = Party(4), batch()
    party.shared(b)
    for rank in range(1, 4):
        own = {s.stream for i in order_of(party.ranks[rank], rank, 8) for s in b.take(MICROBATCHES[i]).samples}
        assert {s.stream for s in party.ends[rank]._received.values()} == own
        assert len(party.ends[rank]._received) == sum(len(MICROBATCHES[i]) for i in (rank, rank + 4))


def test_other_messages_are_refused() -> None:
    party = Party(2)
    party.ends[0].hand_out(batch(), MICROBATCHES, do="step")
    content = party.ranks[1].receive()
    assert content is not None
    header, tensors = read_message(content)
    others: list[tuple[dict[str, Any], dict[str, Tensor]]] = [
        (header, {name: x for name, x in tensors.items() if name != key})
        for key in tensors if not key.startswith(("reward", "logp_old", "advantage", "weight", "loss_share", "routes"))
    ]  # fmt: skip
    others += [({name: x for name, x in header.items() if name != key}, tensors) for key in header if key != "do"
               if key not in ("wanted", "replay")]  # fmt: skip
    others += [(header, tensors | {"advantage": tensors["advantage"][:-1]})]
    others += [(header, tensors | {"advantage": tensors["advantage"].repeat(2)})]
    others += [(header | {"sizes": header["sizes"][:4]}, tensors), (header | {"measures": ["Unknown()"] * 4}, tensors)]
    others += [(header, tensors | {key: x - 100}) for key, x in tensors.items() if key.startswith("sequences.index")]
    assert len(others) > 60
    for changed, columns in others:
        end = MicrobatchSharing(party.ranks[1], Model())
        with pytest.raises(BadData, match="a message of rank 0 cannot be read") as caught:
            end.received(changed, columns, MEASURES, {})
        assert "one version of groupwise" in caught.value.fix
    assert MicrobatchSharing(party.ranks[1], Model()).received(header, tensors, MEASURES, {}).microbatches


def test_a_mark_needs_no_declaration() -> None:
    share = Party(2).shared(batch())[1]
    assert TokenMark("line") in share.microbatches[0].measures and isinstance(share.microbatches[0].samples[0], Sample)
