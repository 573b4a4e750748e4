"""Router replay in training: recorded experts, counts of changed choices, and the load-balancing loss."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from groupwise.advantages import centred, every_token
from groupwise.core import Usage
from groupwise.data import Batch, Logp, pack
from groupwise.learner import AdamW, Learner, RouterBalance, RouterReplay, StepPlan, check_routing, forward, mixture
from groupwise.methods import Method
from groupwise.models.decoder.transformers_model import TransformersBackbone
from groupwise.objective import Clip, Objective, token_mean
from tests.learner.small import backward_pass, rollouts
from tests.learner.small import model as dense
from tests.models import mixtures

OBJECTIVE = Objective(surrogate=Clip(), aggregate=token_mean)
FIRST, SECOND = StepPlan(((0, 1, 2, 3), (4, 5))), StepPlan(((6, 7, 8, 9, 10, 11),))
R2: RouterReplay = "learner"
R3: RouterReplay = "engine"
NONE: RouterReplay = "none"
EVEN, BALANCE = (RouterBalance(0.5),), "routing/balance"
OLD = frozenset({Logp("policy")})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransformersBackbone:
    return mixtures.mixture(tmp_path_factory.mktemp("mixture"))


def batch() -> Batch:
    """Three prompts with four answers of 0 to 20 tokens."""
    b = pack(rollouts([[12, 20, 1, 0], [3, 3, 15, 8], [1, 17, 20, 2]]))
    return b.having(advantage=every_token(centred(b.verdict_score, b), b))


def learner(model: TransformersBackbone, lr: float = 0.05) -> Learner:
    return Learner(copy.deepcopy(model), optimizer=AdamW(lr=lr), steps=10, temperature=0.7)


def gradient(
    model: TransformersBackbone, step: StepPlan, routing: RouterReplay, b: Batch | None = None,
    auxiliary: tuple[RouterBalance, ...] = (),
) -> torch.Tensor:  # fmt: skip
    it, b = learner(model), b or batch()
    backward_pass(it, OBJECTIVE.prepare(b.take(step.samples)), step, OBJECTIVE, routing, auxiliary)
    return torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("routing", ["none", R2])
def test_computing_measures_records_every_tokens_experts(model: TransformersBackbone, routing: RouterReplay) -> None:
    b = learner(model).compute_measures(batch(), (FIRST, SECOND), OLD, routing)
    experts = mixture(model)
    assert experts is not None
    for sample, lines, said in zip(b.samples, b.routes, mixtures.alone(model, b)):
        assert len(lines) == (len(sample.context) + len(sample.tokens) - 1 if sample.tokens else 0)
        for number, (_, chosen) in enumerate(said):
            assert experts.decode(lines)[:, number].tolist() == chosen.tolist()


@pytest.mark.parametrize("routing", ["none", R2, R3])
def test_the_first_step_is_on_the_policy_and_later_ones_are_not(
    model: TransformersBackbone, routing: RouterReplay
) -> None:
    it = learner(model)
    b = it.compute_measures(batch(), (FIRST, SECOND), OLD, routing)
    first = it.step(b, FIRST, OBJECTIVE, routing)
    assert torch.equal(first.batch.logp, first.batch.logp_old)
    second = it.step(b, SECOND, OBJECTIVE, routing)
    assert not torch.equal(second.batch.logp, second.batch.logp_old)
    if routing == R3:  # there no engine wrote anything down
        assert (first.route_count, second.route_count) == (0, 0)
    else:
        tokens = sum(len(s.context) + len(s.tokens) - 1 for s in b.take(FIRST.samples).samples if s.tokens)
        assert (first.changed_route_count, first.route_count) == (0, tokens * 2 * 2) and second.changed_route_count > 0


def test_changed_experts_are_counted_as_in_a_loop(model: TransformersBackbone) -> None:
    it = learner(model)
    b = it.compute_measures(batch(), (FIRST, SECOND), OLD)
    before = mixtures.alone(model, b.take(SECOND.samples))
    it.step(b, FIRST, OBJECTIVE)
    after, counted = mixtures.alone(it.model, b.take(SECOND.samples)), it.step(b, SECOND, OBJECTIVE)
    changed = choices = 0
    for old, new in zip(before, after):
        for (_, was), (_, now) in zip(old, new):
            for a, c in zip(was.tolist(), now.tolist()):
                changed, choices = changed + len(set(c) - set(a)), choices + len(c)
    assert (counted.changed_route_count, counted.route_count) == (changed, choices) and 0 < changed < choices


def test_replay_sends_tokens_to_the_recorded_experts(model: TransformersBackbone) -> None:
    """After a step that changes experts, log-probs with replay differ from those without; the experts are equal."""
    found = {}
    for routing in ("none", R2):
        it = learner(model)
        b = it.compute_measures(batch(), (FIRST, SECOND), OLD, routing)
        it.step(b, FIRST, OBJECTIVE, routing)
        found[routing] = it.step(b, SECOND, OBJECTIVE, routing), it.state()[0]
    (free, moved), (held, other) = found["none"], found[R2]
    assert free.changed_route_count > 0 and not torch.allclose(free.batch.logp, held.batch.logp)
    assert not all(torch.equal(moved[name], other[name]) for name in moved)


def test_routers_learn_under_replay(model: TransformersBackbone) -> None:
    it = learner(model)
    b = it.compute_measures(batch(), (FIRST, SECOND), OLD, R2)
    before = [r.weight.detach().clone() for r in mixtures.routers(it.model)]
    it.step(b, FIRST, OBJECTIVE, R2)
    assert all(not torch.equal(a, r.weight) for a, r in zip(before, mixtures.routers(it.model)))


def test_old_log_probs_use_the_engines_experts(model: TransformersBackbone) -> None:
    """With experts that the learner would not choose, old log-probs use them and the first ratio is 1."""
    it, experts = learner(model), mixture(model)
    assert experts is not None
    draws = torch.Generator().manual_seed(3)
    lines: dict[tuple[int, ...], bytes] = {}  # equal beginnings went to equal experts

    def drawn(ids: tuple[int, ...]) -> bytes:
        scores = torch.rand(1, experts.router_count, experts.expert_count, generator=draws)
        return lines.setdefault(ids, experts.encode(scores.topk(experts.experts_per_token).indices)[0])

    b = batch()
    texts = [(*s.context, *s.tokens) for s in b.samples]
    b = b.having(routes=tuple(tuple(drawn(t[: i + 1]) for i in range(len(t) - 1)) for t in texts))
    followed, own = it.compute_measures(b, (FIRST, SECOND), OLD, R3), it.compute_measures(b, (FIRST, SECOND), OLD, R2)
    assert followed.routes == b.routes != own.routes
    assert not torch.allclose(followed.logp_old, own.logp_old)
    taken = it.step(followed, FIRST, OBJECTIVE, R3)
    assert torch.equal(taken.batch.logp, taken.batch.logp_old) and taken.changed_route_count > 0


def balance(model: TransformersBackbone, b: Batch) -> float:
    """Switch Transformers, equations 4 to 6, per router over every token of every sample; mean over routers."""
    found = []
    for number in range(2):
        logits = np.concatenate([s[number][0].detach().double().numpy() for s in mixtures.alone(model, b) if s])
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        chosen = np.argsort(-p, axis=1)[:, :2]
        f = np.array([(chosen == e).sum() / len(p) for e in range(8)])
        found.append(8 * (f * p.mean(0)).sum())
    return float(np.mean(found))


def test_the_load_balancing_loss_is_its_equation(model: TransformersBackbone) -> None:
    for auxiliary in (EVEN, (RouterBalance(2.0),)):
        it = learner(model)
        plain = it.step(batch(), SECOND, OBJECTIVE)
        taken = learner(model).step(batch(), SECOND, OBJECTIVE, NONE, auxiliary)
        assert taken.auxiliary_losses[BALANCE] == pytest.approx(balance(model, batch().take(SECOND.samples)), abs=1e-6)
        assert taken.loss - plain.loss == pytest.approx(
            auxiliary[0].coefficient * taken.auxiliary_losses[BALANCE], abs=1e-9
        )
        assert not plain.auxiliary_losses


def test_the_load_balancing_loss_of_one_router_equals_transformers(tmp_path: Path) -> None:
    it = mixtures.mixture(tmp_path, num_hidden_layers=1)
    logits = torch.cat([s[0][0] for s in mixtures.alone(it, batch().take(SECOND.samples)) if s])
    expected = load_balancing_loss_func((logits,), 8, 2)
    assert isinstance(expected, torch.Tensor)
    assert learner(it).step(batch(), SECOND, OBJECTIVE, NONE, EVEN).auxiliary_losses[BALANCE] == pytest.approx(
        float(expected.detach()), abs=1e-6
    )
    slope = gradient(it, SECOND, NONE, auxiliary=(RouterBalance(1.0),)) - gradient(it, SECOND, NONE)
    weights = list(it.parameters())
    found = torch.autograd.grad(expected, weights, allow_unused=True)
    named = torch.cat([(torch.zeros_like(w) if g is None else g).flatten() for w, g in zip(weights, found)])
    assert named.norm() > 1e-2 and (slope - named).norm() < 1e-5 * named.norm()


@pytest.mark.parametrize("routing", [NONE, R2])
def test_the_load_balancing_loss_ignores_the_microbatches(model: TransformersBackbone, routing: RouterReplay) -> None:
    """Also when a group is split and its prompt is forwarded in several microbatches."""
    everyone = tuple(range(12))
    cuts = [
        StepPlan((everyone,)),
        StepPlan((everyone[:2], everyone[2:9], everyone[9:])),
        StepPlan(tuple((i,) for i in everyone)),
    ]
    b = learner(model).compute_measures(batch(), cuts[:1], OLD, routing)
    whole, *others = (gradient(model, cut, routing, b, EVEN) for cut in cuts)
    assert (whole - gradient(model, cuts[0], NONE, b)).norm() > 1e-2
    for microbatches in others:
        assert (microbatches - whole).norm() < 1e-6 * whole.norm()
    values = [learner(model).step(b, cut, OBJECTIVE, routing, EVEN) for cut in cuts]
    assert max(abs(v.auxiliary_losses[BALANCE] - values[0].auxiliary_losses[BALANCE]) for v in values) < 1e-6
    assert {(v.changed_route_count, v.route_count) for v in values} == {(0, values[0].route_count)}


def test_zero_advantages_still_have_a_load_balancing_loss(model: TransformersBackbone) -> None:
    flat = batch().having(advantage=torch.zeros_like(batch().advantage))
    assert learner(model).step(flat, SECOND, OBJECTIVE).grad_norm == 0
    assert learner(model).step(flat, SECOND, OBJECTIVE, NONE, EVEN).grad_norm > 0


def test_recomputed_layers_have_the_same_load_balancing_loss(model: TransformersBackbone) -> None:
    kept, again = learner(model), learner(model)
    again.model.recompute = True  # pyright: ignore[reportArgumentType]
    for it in (kept, again):
        b = it.compute_measures(batch(), (FIRST, SECOND), OLD, R2)
        it.step(b, FIRST, OBJECTIVE, R2, EVEN)
        it.step(b, SECOND, OBJECTIVE, R2, EVEN)
    assert all(torch.equal(x, again.state()[0][name]) for name, x in kept.state()[0].items())


def test_a_dense_model_has_no_routing() -> None:
    it = Learner(dense(), optimizer=AdamW(), steps=1)
    b = it.compute_measures(batch(), (FIRST, SECOND), OLD)
    assert not any(b.routes) and it.step(b, FIRST, OBJECTIVE).route_count == 0
    check_routing("none", (), None)
    for routing, auxiliary in ((R2, ()), (R3, ()), (NONE, EVEN)):
        with pytest.raises(Usage, match="need a mixture of experts"):
            check_routing(routing, auxiliary, mixture(it.model))


def test_invalid_routing_is_refused() -> None:
    with pytest.raises(ValueError, match="coefficient is -1"):
        RouterBalance(-1)
    with pytest.raises(ValueError, match="nothing to replay"):
        Method(router_replay=R2, old_logprobs="engine")
    assert Method(router_replay=R3, old_logprobs="engine").router_replay is R3


def test_an_auxiliary_loss_of_a_user_adds_its_gradient(model: TransformersBackbone) -> None:
    """The supervised term `-mean(logp)` over a step: its gradient adds to the objective's, for any microbatches."""

    @dataclass(frozen=True)
    class Supervised:
        coefficient: float = 0.3

        def __call__(self, step: Any) -> Any:
            tokens = sum(b.tokens for b in step.step_microbatches)
            return lambda forwarded: -forwarded.logp.sum() / tokens

    whole, pieces = StepPlan((tuple(range(12)),)), StepPlan((tuple(range(5)), tuple(range(5, 12))))
    total, split = (gradient(model, step, NONE, auxiliary=(Supervised(),)) for step in (whole, pieces))  # pyright: ignore
    alone = gradient(model, whole, NONE)
    it, b = learner(model), batch()
    (-0.3 * forward(it.model, b, temperature=0.7)[0].mean()).backward()  # pyright: ignore[reportArgumentType]
    term = torch.cat([p.grad.flatten() for p in it.model.parameters() if p.grad is not None])
    assert term.norm() > 1e-2 and (total - alone - term).norm() < 1e-6 * term.norm()
    assert (split - total).norm() < 1e-6 * total.norm()
    taken = learner(model).step(b, whole, OBJECTIVE, NONE, (Supervised(), RouterBalance(0.0)))  # pyright: ignore
    mean = float(forward(learner(model).model, b, temperature=0.7)[0].detach().mean())  # pyright: ignore[reportArgumentType]
    assert taken.auxiliary_losses == {"auxiliary/Supervised": pytest.approx(-mean)}
