"""Speculative decoding: bits of plain decoding in fewer forward passes. BubbleSpec, arXiv:2605.08862."""

import asyncio
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from groupwise.core import Usage
from groupwise.data import Generation, GenerationRequest, Sampling
from groupwise.engines import Speculative, SpeculativeEngine
from groupwise.engines.native.draft_store import PER_PROMPT, DraftStore
from groupwise.methods import bubblespec
from groupwise.models import Decoder, MixtureOfExpertsSizes, choose
from tests.rollout.fakes import decoder, engine, generate, prompt_of, request, tokenizer, without_end_token
from tests.toys.echo import SHAPE, ToyRun, small
from tests.toys.echo import tokenizer as toy_tokenizer

EXPERTS = MixtureOfExpertsSizes(router_count=2, experts_per_token=2, expert_count=8)
SAMPLED, GREEDY = Sampling(), Sampling(temperature=0.0)


def noisy(noise: float) -> Decoder:
    """A small decoder; with noise, the weights of some steps ago."""
    made = decoder(torch.float32, spread=0.1, hidden_size=64, head_dim=16, mlp_width=96)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in made.parameters():
            x.add_(noise * torch.randn(x.shape, generator=random))
    return made


@cache
def model() -> Decoder:
    return noisy(0.0)


@cache
def requests() -> tuple[GenerationRequest, ...]:
    """Groups with one prompt, short and long ones, sampled and greedy, and the continuation of a conversation."""
    groups = [
        request(i, context=prompt_of(i, length), limit=limit, stream=(j,), sampling=sampling)
        for i, (length, limit, sampling) in enumerate([(9, 12, SAMPLED), (90, 16, SAMPLED), (70, 10, GREEDY)])
        for j in range(3)
    ]
    stopped = request(5, context=prompt_of(5), limit=16, sampling=Sampling(stop=("3",)))
    groups[0] = replace(groups[0], num_top_logprobs=2)
    return (*groups, stopped, request(6, context=prompt_of(6, 30), limit=12, already_generated_count=7))


def speculative(decoder: Decoder, **sizes: int) -> SpeculativeEngine:
    return SpeculativeEngine(decoder, tokenizer(), seed=11, **sizes)


@cache
def plain() -> list[Generation]:
    return generate(engine(model(), tokenizer()), requests())


@pytest.mark.parametrize(
    ("noise", "sizes"),
    [
        (0.0, {}),
        (0.01, {}),
        (0.01, {"window": 0}),
        (0.01, {"window": 3, "max_num_seqs": 5}),
        (0.0, {"kv_cache_tokens": 700}),
    ],
    ids=["same weights", "other weights", "no window", "few rows", "small cache"],
)
def test_drafts_change_no_bit(noise: float, sizes: dict[str, int]) -> None:
    """Tokens, log-probs, likeliest tokens and finish, with drafts of the same and of other weights, in any room."""
    e = speculative(noisy(noise), **sizes)
    generate(e, requests())
    asyncio.run(e.load(1, dict(model().state_dict())))
    again = generate(e, requests())
    assert [replace(x, versions=()) for x in again] == [replace(x, versions=()) for x in plain()]
    assert len(again[0].top_logprobs) == len(again[0].tokens)


def test_a_pass_takes_a_window() -> None:
    """Twenty tokens with a draft of the same weights: three passes of 1 + 8 tokens. Without drafts, twenty passes."""
    asked = [request(0, limit=20, stream=(j,)) for j in range(4)]
    e = SpeculativeEngine(model(), without_end_token(), seed=11)
    first = generate(e, asked)
    assert e.passes == 20 and e.figures() == {"engine/0/passes": 20.0, "engine/0/accepted": 0.0}
    assert generate(e, asked) == first and e.passes == 20 + 3
    assert e.figures() == {"engine/0/passes": 3.0, "engine/0/accepted": 4 * (20 - 3.0)}, "one token a pass is drawn"
    other = SpeculativeEngine(model(), without_end_token(), seed=11, max_num_seqs=4)
    assert generate(other, asked) == first and generate(other, asked) == first
    assert other.passes > 20 + 3, "drafts use free rows only"


def test_training_has_equal_bits(tmp_path: Path) -> None:
    """Three iterations over four prompts, whose earlier answers are drafts; also after a resume, which has none."""
    lines, weights = [], []
    for name, kind in (("plain", None), ("drafts", SpeculativeEngine), ("resumed", SpeculativeEngine)):
        policy = Decoder.new(SHAPE, 5, dtype=torch.float32, spread=0.3)
        own = kind(policy, toy_tokenizer(), seed=0) if kind else None
        if name == "resumed":
            half = Decoder.new(SHAPE, 5, dtype=torch.float32, spread=0.3)
            cut = SpeculativeEngine(half, toy_tokenizer(), seed=0)
            toy(tmp_path / name, half, cut, 1).go()
        run = toy(tmp_path / name, policy, own, 3)
        lines.append(run.go())
        weights.append(run.weights())
    assert lines[0] == lines[1] == lines[2]
    assert all(torch.equal(x, w[key]) for w in weights[1:] for key, x in weights[0].items())


def toy(directory: Path, policy: Decoder, engine: SpeculativeEngine | None, iterations: int) -> ToyRun:
    return ToyRun(
        small("bubblespec"), directory, iterations=iterations, max_tokens=6, save=1, policy=policy, engine=engine
    )


def test_a_draft_is_accepted_where_it_would_be_drawn() -> None:
    """Laws p and q with one random number: the draft of q is right in .6 of cases, and the tokens have the law p.

    Independent numbers would agree with probability .31. The most that a draft can agree is sum min(p, q) = .7.
    """
    p, q = (torch.tensor([law]).log() for law in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]))
    u = torch.from_numpy((np.arange(1000) + 0.5) / 1000)
    row = torch.zeros(1000, dtype=torch.long)
    drawn, draft = choose(p, u, row), choose(q, u, row)
    assert torch.bincount(drawn).tolist() == [500, 300, 200]
    assert float((drawn == draft).double().mean()) == 0.6


def test_drafts_are_chosen_and_forgotten() -> None:
    """The sample's own draft first, then the newest that begins alike; a few per prompt, and the newest prompts."""
    drafts = DraftStore(20)
    for j in range(PER_PROMPT + 4):
        drafts.add(request(0, stream=(j,)), (7, j))
    assert drafts.propose(request(0, stream=(9,)), (7,), 8) == (9,)
    assert drafts.propose(request(0, stream=(0,)), (7,), 8) == (PER_PROMPT + 3,), "its own was the oldest"
    assert drafts.propose(request(0, stream=(9,)), (8,), 8) == () == drafts.propose(request(1), (), 8)
    for i in range(1, 9):
        drafts.add(request(i), (5, 6))
    assert drafts.count <= 20 and drafts.propose(request(0, stream=(9,)), (7,), 8) == ()
    assert drafts.propose(request(8), (), 1) == (5,)


def test_settings() -> None:
    for changes in ({"num_speculative_tokens": -1}, {"max_stored_answers": -1}, {"max_num_seqs": 0}):
        with pytest.raises(ValueError, match="take at least"):
            Speculative(**changes)
    with pytest.raises(Usage, match="does not record the experts"):
        Speculative().build(model(), tokenizer(), seed=0, experts=EXPERTS)
    assert isinstance(
        Speculative(num_speculative_tokens=2).build(model(), tokenizer(), seed=0, experts=None), SpeculativeEngine
    )
    assert bubblespec().strategy == small("grpo").strategy
