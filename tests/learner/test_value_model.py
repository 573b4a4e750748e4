"""Value models: values, gradients and clipping against plain forwards, any microbatches, and exact resume."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.advantages import WhitenedTokens
from groupwise.data import Batch, Return, Value, pack, rollout_of
from groupwise.learner import AdamW, ClippedValueLoss, InitialPolicy, Learner, SquaredValueLoss, StepPlan, ValueModel
from groupwise.learner.auxiliary import AuxiliaryLossInputs, ForwardResult
from groupwise.learner.forward import hidden_states
from groupwise.methods import GAE, Method
from groupwise.models import DecoderShape, PrefixPacking
from groupwise.training.loop import compute_advantages
from tests.learner.small import SHAPE, backward_pass, model, ragged
from tests.learner.test_gradients import OBJECTIVES, close, credited

OBJECTIVE = OBJECTIVES["tokens"]
WHOLE = StepPlan((tuple(range(24)),))
PLANS = (WHOLE, StepPlan((tuple(range(7)), tuple(range(7, 12)), tuple(range(12, 24)))))
CLIPPED, SQUARED = ClippedValueLoss(clip=0.1, coefficient=0.5), SquaredValueLoss(coefficient=0.5)
TRUNKS = {
    "own": ValueModel(trunk="own", loss=CLIPPED),
    "shared": ValueModel(trunk="shared", loss=CLIPPED),
    "own, head alone": ValueModel(trunk="own", trains_trunk=False, loss=SQUARED),
    "shared, head alone": ValueModel(trunk="shared", trains_trunk=False, loss=SQUARED),
}


def learner(
    part: ValueModel, dtype: torch.dtype = torch.float64, shape: DecoderShape = SHAPE, **settings: Any
) -> Learner:
    it = Learner(
        model(dtype, shape=shape), optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7,
        side_models=(("reference", InitialPolicy()), ("critic", replace(part, optimizer=AdamW(lr=3e-2)))), **settings,
    )  # fmt: skip
    head = it._critics["critic"].head
    with torch.no_grad():  # a head of zeros would have no gradient in its trunk
        head.weight.copy_(torch.linspace(-0.5, 0.5, SHAPE.hidden_size)[None])
        head.bias.fill_(0.1)
    return it


@cache
def valued(dtype: torch.dtype = torch.float64) -> Batch:
    """The credited batch, with returns, and with old values at distances of the current ones around the clip."""
    batch = credited(dtype=dtype)
    draws = torch.Generator().manual_seed(4)
    current = learner(TRUNKS["own"], dtype).compute_measures(batch, PLANS[:1], frozenset({Value()}))[Value()]
    old = current + 0.2 * torch.randn(batch.tokens, generator=draws, dtype=dtype)
    goal = torch.randn(batch.tokens, generator=draws, dtype=torch.float64)
    return batch.having(measures={Value(): old, Return(): goal})


def plain_values(it: Learner, batch: Batch, trunk: Any) -> Tensor:
    """One full causal forward per sample; the state before a token predicts its value."""
    values: list[Tensor] = []
    for sample in batch.samples:
        ids = (*sample.context, *sample.tokens)
        layout = PrefixPacking.of([ids[:1]], [(*ids[1:], 0)])
        states = trunk(layout.tokens, layout)[len(sample.context) - 1 :]
        values += [states[t] for t in range(len(sample.tokens))]
    head = it._critics["critic"].head
    return torch.stack(values) @ head.weight[0] + head.bias


def gradients(it: Learner) -> dict[str, Tensor]:
    """The gradients of policy, own trunk and head."""
    critic = it._critics["critic"]
    parts = {"policy": it.model, "trunk": critic.trunk, "head": critic.head}
    return {
        name: torch.cat([p.grad.flatten() for p in part.parameters() if p.grad is not None] or [torch.zeros(0)])
        for name, part in parts.items()
        if part is not None
    }


def backward(it: Learner, batch: Batch, step: StepPlan, part: ValueModel, auxiliary: bool = True) -> dict[str, Tensor]:
    whole = OBJECTIVE.prepare(batch.take(step.samples))
    backward_pass(it, whole, step, OBJECTIVE, auxiliary=(part.loss,) if auxiliary else ())
    return gradients(it)


@pytest.mark.parametrize("name", TRUNKS)
def test_values_are_those_of_the_state_before_each_token(name: str) -> None:
    it, batch = learner(TRUNKS[name]), pack(ragged())
    for plan in PLANS:
        measured = it.compute_measures(batch, (plan,), frozenset({Value()}))
        torch.testing.assert_close(
            measured[Value()], plain_values(it, batch, it.model).detach(), rtol=1e-12, atol=1e-13
        )
        assert measured.logp_old is None and not measured[Value()].requires_grad


def test_a_new_head_is_zero() -> None:
    it = Learner(model(), optimizer=AdamW(), steps=1, side_models=(("critic", ValueModel()),))
    assert not it.compute_measures(pack(ragged()), PLANS[:1], frozenset({Value()}))[Value()].any()


@pytest.mark.parametrize("name", TRUNKS)
def test_gradients_are_those_of_plain_forwards_for_any_microbatches(name: str) -> None:
    part, batch = TRUNKS[name], valued()
    alone = backward(learner(part), batch, WHOLE, part, auxiliary=False)["policy"]
    it = learner(part)
    critic = it._critics["critic"]
    value = plain_values(it, batch, it.model if critic.trunk is None else critic.trunk)
    old, goal = batch[Value()], batch[Return()]
    errors = [(value - goal) ** 2]
    if isinstance(part.loss, ClippedValueLoss):
        errors.append((old + torch.clamp(value - old, -0.1, 0.1) - goal) ** 2)
    (0.5 * 0.5 * torch.stack(errors).amax(0).sum() / batch.tokens).backward()
    wanted = gradients(it)
    if part.trunk == "shared":
        reaches = wanted["policy"] if part.trains_trunk else torch.zeros_like(alone)
        wanted["policy"] = alone + reaches
    else:
        wanted["policy"] = alone
    assert wanted["head"].norm() > 1e-3 and (len(wanted.get("trunk", ())) > 0) == (name == "own")
    for step in PLANS:
        actual = backward(learner(part), batch, step, part)
        for key, x in wanted.items():
            assert len(actual[key]) == len(x) and (not len(x) or close(actual[key], x, 1e-11)), (key, step)


def test_worked_numbers_of_the_losses() -> None:
    """V = [.9, .1, .55], V_old = .5, G = [1, 1, 0], clip .2: the larger errors are [.09, .81, .3025]."""
    batch = pack([rollout_of([1.0], lengths=[3])])
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    states = hidden_states(model(), batch)
    numbers = {Value(): torch.full_like(third, 0.5), Return(): torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)}
    batch = batch.having(loss_share=third, measures=numbers)
    for loss, total, slope in (
        (ClippedValueLoss(clip=0.2), 0.2004166667, [0.0, -0.3, 0.55 / 3]),
        (SquaredValueLoss(), (0.01 + 0.81 + 0.3025) / 6, [-0.1 / 3, -0.3, 0.55 / 3]),
    ):
        value = torch.tensor([0.9, 0.1, 0.55], dtype=torch.float64, requires_grad=True)
        term = loss(AuxiliaryLossInputs(None, [batch], lambda: None))
        x = term(ForwardResult(batch, states, third, None, lambda name, value=value: value))
        x.backward()
        assert float(x.detach()) == pytest.approx(total, abs=1e-9)
        assert value.grad is not None and value.grad.tolist() == pytest.approx(slope, abs=1e-12)


@pytest.mark.parametrize("name", TRUNKS)
def test_a_step_changes_what_it_trains(name: str) -> None:
    part, batch = TRUNKS[name], valued()
    it, without = learner(part), learner(part)
    critic = it._critics["critic"]
    before = {key: x.clone() for key, x in critic.state_dict().items()}
    result = it.step(batch, WHOLE, OBJECTIVE, auxiliary=(part.loss,))
    without.step(batch, WHOLE, OBJECTIVE)
    changed = {key for key, x in critic.state_dict().items() if not torch.equal(x, before[key])}
    assert {"head.weight", "head.bias"} <= changed
    assert any(key.startswith("trunk.") for key in changed) == (name == "own")
    same = all(torch.equal(x, without.weights()[key]) for key, x in it.weights().items())
    assert same == (name != "shared")
    assert result.auxiliary_losses["value/critic/loss"] > 0 and result.auxiliary_losses["value/critic/grad_norm"] > 0
    assert not any(p.grad is not None for p in critic.parameters())


def test_a_gradient_of_the_values_that_is_not_finite_skips_the_step() -> None:
    part, batch = TRUNKS["own"], valued()
    it = learner(part)
    before = {key: x.clone() for key, x in (it.weights() | it._critics["critic"].state_dict()).items()}
    broken = batch.having(measures={Return(): batch[Return()] * float("nan")})
    assert it.step(broken, WHOLE, OBJECTIVE, auxiliary=(part.loss,)).skip_reason
    assert all(torch.equal(x, before[key]) for key, x in (it.weights() | it._critics["critic"].state_dict()).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TRUNKS)
def test_a_resumed_run_has_the_same_values_bit_by_bit(name: str, dtype: torch.dtype) -> None:
    part, batch = TRUNKS[name], valued(torch.float32)

    def train(it: Learner, steps: int) -> None:
        for _ in range(steps):
            it.step(batch, PLANS[1], OBJECTIVE, auxiliary=(part.loss,))

    whole, first, second = (learner(part, dtype) for _ in range(3))
    train(whole, 4)
    train(first, 2)
    tensors, state = first.state()
    second.restore({key: x.clone() for key, x in tensors.items()}, state)
    train(second, 2)
    a, b = whole.state()[0], second.state()[0]
    assert a.keys() == b.keys() and all(torch.equal(x, b[key]) for key, x in a.items())
    assert any(key.startswith("value_models.critic.optimizer.") for key in a)
    mine, other = (it._critics["critic"].state_dict() for it in (whole, second))
    assert all(torch.equal(x, other[key]) for key, x in mine.items())


PPO = Method(group_size=1, credit=WhitenedTokens(GAE()), models=(("critic", ValueModel()),))


def test_a_method_knows_the_target_and_the_measures_of_its_value_model() -> None:
    assert PPO.needs == {Value(), Return()} and PPO.models_in_use == PPO.models
    assert PPO.value_targets == (("critic", GAE()),) and PPO.auxiliary_losses == (ClippedValueLoss(),)
    decoupled = replace(PPO, models=(("critic", ValueModel(target_credit=GAE(lam=1.0))),))
    assert decoupled.value_targets == (("critic", GAE(lam=1.0)),)


def test_a_return_is_the_credit_before_whitening_plus_the_value() -> None:
    """The numbers of `test_gae::test_worked_numbers`; the advantages of the policy are whitened."""
    values = torch.tensor([0.2, 0.4, 0.6, 0.5], dtype=torch.float64)
    batch = pack([rollout_of([1.0], lengths=[4])]).having(measures={Value(): values})
    actual = compute_advantages(batch, PPO)
    assert actual[Return()].tolist() == pytest.approx([0.9284375, 0.95625, 0.975, 1.0], abs=1e-12)
    assert actual.advantage.mean() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ()}, "does not define"),
        ({"models": (("critic", InitialPolicy()),)}, "of the kind InitialPolicy"),
        ({"credit": GAE(kl_coefficient=0.1, reference_model="critic")}, "of the kind ValueModel"),
        ({"credit": Method().credit}, "has no unique target: 0 components"),
        ({"models": (("critic", ValueModel(loss=SquaredValueLoss(critic="other"))),)}, "trains another model"),
    ],
)
def test_methods_whose_models_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PPO, **change)


def test_losses_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="take a clip above 0"):
        ClippedValueLoss(clip=0.0)
    with pytest.raises(ValueError, match="take a coefficient above 0"):
        SquaredValueLoss(coefficient=0.0)
