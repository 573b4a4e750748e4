"""The learner's gradients equal those of one plain forward per sample, for any microbatches, ranks and objective."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.advantages import Standardised, every_token
from groupwise.data import Batch, pack
from groupwise.learner import AdamW, Learner, StepPlan, forward, make_plan
from groupwise.methods import SoftGate
from groupwise.models import Decoder, PrefixPacking
from groupwise.objective import (
    Clip,
    ClippedWeight,
    Objective,
    budget_mean,
    group_mean,
    sequence_mean,
    sequence_ratio,
    token_mean,
)
from groupwise.rewards import Correctness
from tests.learner.small import SHAPE, backward_pass, model, ragged

OBJECTIVES = {
    "sequences": Objective(surrogate=Clip(), aggregate=sequence_mean),
    "groups": Objective(surrogate=Clip(), aggregate=group_mean),
    "tokens": Objective(surrogate=Clip(0.2, 0.28), aggregate=token_mean),
    "budget": Objective(surrogate=Clip(), aggregate=budget_mean),
    "sequence ratio": Objective(surrogate=Clip(0.3, 0.3, ratio=sequence_ratio), aggregate=sequence_mean),
    "weights": Objective(surrogate=ClippedWeight(0.0, 5.0), aggregate=token_mean),
    "gate": Objective(surrogate=SoftGate(), aggregate=sequence_mean),
}


def credited(old: float = 0.1, dtype: torch.dtype = torch.float64) -> Batch:
    """The ragged batch with advantages, and with old log-probs that differ from the model's."""
    batch = pack(ragged())
    reward = Correctness()(torch.zeros(len(batch), dtype=torch.float64), batch)
    batch = batch.having(reward=reward, advantage=every_token(Standardised()(reward, batch), batch))
    logp, _ = forward(model(dtype), batch, temperature=0.7)
    noise = torch.randn(batch.tokens, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return batch.having(logp_old=logp.detach() + old * noise)


def learner(dtype: torch.dtype = torch.float64) -> Learner:
    return Learner(model(dtype), optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7)


def gradient(batch: Batch, step: StepPlan, objective: Objective, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    it = learner(dtype)
    backward_pass(it, objective.prepare(batch.take(step.samples)), step, objective)
    return torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None])


def plain_gradient(batch: Batch, objective: Objective, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """One full causal forward per sample, all logits, one backward."""
    decoder = model(dtype)
    step = objective.prepare(batch)
    logps = []
    for sample in batch.samples:
        if not sample.tokens:
            continue
        ids = (*sample.context, *sample.tokens)
        layout = PrefixPacking.of([ids[:1]], [(*ids[1:], 0)])
        logp = (decoder.head(decoder(layout.tokens, layout)) / 0.7).log_softmax(-1)
        logps += [logp[len(sample.context) - 1 + t, token] for t, token in enumerate(sample.tokens)]
    objective(step.having(logp=torch.stack(logps))).backward()
    return torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])


def close(a: torch.Tensor, b: torch.Tensor, relative: float) -> bool:
    return float((a - b).norm() / b.norm()) < relative


@pytest.mark.t(1)
@pytest.mark.t(5)  # the packed, shared, chunked forward is our fused path
@pytest.mark.parametrize("long", (64, 5))  # contexts of more tokens are asked once for all answers: none, two thirds
@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_partition_has_the_plain_gradient(name, long, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("groupwise.models.decoder.prefix_packing.LONG", long)
    batch, objective = credited(), OBJECTIVES[name]
    wanted = plain_gradient(batch, objective)
    assert wanted.norm() > 1e-3
    ordered, mixed = list(range(24)), torch.randperm(24, generator=torch.Generator().manual_seed(3)).tolist()
    for samples, microbatches in ((ordered, 1), (mixed, 1), (ordered[::-1], 2), (ordered, 3), (mixed, 8)):
        step = StepPlan(tuple(tuple(samples[i::microbatches]) for i in range(microbatches)))
        assert close(gradient(batch, step, objective), wanted, 1e-12), (name, microbatches)


@pytest.mark.parametrize("tied", [True, False])
def test_the_embeddings_gradient_is_added_in_place(tied: bool) -> None:
    """The gradient is the same, and no second matrix of its size is allocated."""
    batch, objective = credited(), OBJECTIVES["tokens"]
    found, graphs = [], []
    for in_place in (False, True):
        it = Learner(model(shape=replace(SHAPE, tied_embeddings=tied)), optimizer=AdamW(), steps=1, temperature=0.7)
        assert it.model.model.adds_in_place
        it.model.model.adds_in_place = in_place
        backward_pass(it, objective.prepare(batch), StepPlan((tuple(range(9)), tuple(range(9, 24)))), objective)
        found.append([p.grad for p in it.model.parameters()])
        layout = PrefixPacking.of([(1, 2)], [(3, 4)])
        graphs.append(nodes(it.model(layout.tokens, layout).grad_fn))
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-15)
    assert found[0][0].abs().sum(1).gt(0).sum() > 5
    assert [any("Embedding" in name for name in graph) for graph in graphs] == [True, False]


def nodes(root: Any) -> set[str]:
    """Names of all functions in a tensor's graph."""
    seen, open_ = {root}, [root]
    while open_:
        new = {f for f, _ in open_.pop().next_functions if f is not None} - seen
        seen |= new
        open_ += new
    return {f.name() for f in seen}


@pytest.mark.t(52)
@pytest.mark.parametrize("ranks", (2, 4))
@pytest.mark.parametrize("name", OBJECTIVES)
def test_simulated_ranks_add_up(name, ranks):
    batch, objective = credited(), OBJECTIVES[name]
    fixed = objective.prepare(batch)
    total = torch.zeros(())
    for rank in range(ranks):
        it = learner()
        mine = tuple(range(rank, 24, ranks))
        backward_pass(it, fixed.take(mine), StepPlan((mine[:3], mine[3:])), objective)
        total = total + torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None])
    assert close(total, plain_gradient(batch, objective), 1e-12)


def test_float32_gradients_are_near_the_plain_ones():
    batch, objective = credited(dtype=torch.float32), OBJECTIVES["sequences"]
    step = StepPlan((tuple(range(12)), tuple(range(12, 24))))
    got, wanted = gradient(batch, step, objective, torch.float32), plain_gradient(batch, objective, torch.float32)
    assert close(got, wanted, 5e-6)


@pytest.mark.t(13)
@pytest.mark.t(15)
@pytest.mark.parametrize("long", (64, 5))
def test_log_probs_of_a_sample_do_not_depend_on_its_microbatch(long, monkeypatch: pytest.MonkeyPatch):
    """The learner pads inside attention only: other samples of any length, or none, do not change log-probs."""
    monkeypatch.setattr("groupwise.models.decoder.prefix_packing.LONG", long)
    batch, decoder = pack(ragged()), model()
    together, _ = forward(decoder, batch, temperature=1.0)
    alone = [forward(decoder, batch.take([i]), temperature=1.0)[0] for i in range(24)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-13)


def test_blocks_of_the_vocabulary_change_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("groupwise.learner.linear_logprobs.NARROWEST", 1)
    batch, decoder = pack(ragged()), model()
    whole = forward(decoder, batch, temperature=0.7)
    parts = forward(decoder, batch, temperature=0.7, logits_at_once=5 * batch.tokens)
    for a, b in zip(whole, parts):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    grads = []
    for logp, _ in (whole, parts):
        decoder.zero_grad()
        logp.sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in decoder.parameters()]))
    assert close(grads[1], grads[0], 1e-12)


class AnyHead(torch.nn.Module):
    """The decoder with a head that is not a `HasLinearHead`, so the learner only sees logits."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor, layout: PrefixPacking) -> torch.Tensor:
        return self.decoder(tokens, layout)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.head(hidden)


@pytest.mark.t(5)
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("logits", [17 * 5, 1 << 22])
def test_a_head_of_any_kind_has_the_same_gradient(name: str, logits: int):
    batch, objective = credited(), OBJECTIVES[name]
    step, decoder = objective.prepare(batch), model()
    logp, entropy = forward(AnyHead(decoder), batch, temperature=0.7, logits_at_once=logits)
    objective(step.having(logp=logp)).backward()
    got = torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])
    assert close(got, plain_gradient(batch, objective), 1e-12)
    torch.testing.assert_close(entropy, forward(decoder, batch, temperature=0.7)[1], rtol=1e-12, atol=1e-12)


def test_entropy_is_that_of_the_distribution():
    batch, decoder = pack(ragged()), model()
    _, entropy = forward(decoder, batch, temperature=0.7)
    sample = batch.samples[0]
    layout = PrefixPacking.of([sample.context], [sample.tokens])
    probs = (decoder.head(decoder(layout.tokens, layout))[layout.predicting_indices] / 0.7).softmax(-1)
    wanted = torch.distributions.Categorical(probs=probs).entropy()
    torch.testing.assert_close(entropy[: len(wanted)], wanted.detach(), rtol=1e-12, atol=0)


@pytest.mark.t(3)
@pytest.mark.t(4)
def test_a_step_divides_by_its_tokens_and_reports_its_loss():
    batch, objective = credited(), OBJECTIVES["tokens"]
    steps = make_plan(
        batch,
        size=3,
        shuffle="prompts",
        permutation=lambda n: list(range(n)),
        microbatch_tokens=60,
        unsplit_unit="token",
    )
    assert len(steps) == 2 and all(len(s.microbatches) > 1 for s in steps)
    for step in steps:
        taken = learner().step(batch, step, objective)
        mine = objective.prepare(batch.take(step.samples))
        assert mine.loss_share is not None
        torch.testing.assert_close(mine.loss_share.sum(), torch.tensor(1.0, dtype=torch.float64))
        decoder = model()
        logp, _ = forward(decoder, mine, temperature=0.7)
        assert taken.loss == pytest.approx(objective(mine.having(logp=logp)).item(), abs=1e-12)


@pytest.mark.t(6)
def test_a_microbatch_without_tokens_gives_zero():
    batch, objective = credited(), OBJECTIVES["sequences"]
    empty = (1, 7, 8)
    rest = tuple(i for i in range(24) if i not in empty)
    assert close(gradient(batch, StepPlan((empty, rest)), objective), plain_gradient(batch, objective), 1e-12)
    taken = learner().step(batch, StepPlan((empty,)), objective)
    assert taken.loss == 0 and taken.skip_reason == "no token is trained"
