"""KL and entropy estimators against their exact values, over a vocabulary of 17 tokens."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.data import Batch, Logp, needs, pack, rollout_of, unsplit_unit
from groupwise.objective import KL, EntropyBonus, Objective, kl_k1, kl_k3, token_mean

V = 17


def logits(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the policy (a leaf), of the policy that sampled, and of the reference."""
    rng = torch.Generator().manual_seed(seed)
    policy, old, reference = torch.randn(3, V, generator=rng, dtype=torch.float64)
    return policy.requires_grad_(), old, reference


def every_token(policy: Tensor, old: Tensor, reference: Tensor) -> Batch:
    """One answer per token of the vocabulary. Its share is its probability under the sampling distribution."""
    b = pack([rollout_of([0.0] * V, lengths=[1] * V)])
    zeros = torch.zeros(V, dtype=torch.float64)
    return b.having(
        logp=policy.log_softmax(0),
        logp_old=old.log_softmax(0),
        advantage=zeros,
        weight=zeros,
        loss_share=old.softmax(0),
        measures={Logp("reference"): reference.log_softmax(0)},
    )


def expected(penalty: Any, policy: Tensor, old: Tensor, reference: Tensor) -> tuple[float, Tensor]:
    """The estimator's exact mean under the old policy, and its gradient with respect to the logits."""
    mean = Objective(penalties=(penalty,))(every_token(policy, old, reference))
    return mean.item(), torch.autograd.grad(mean, policy)[0]


def divergence(p: Tensor, q: Tensor, by: Tensor) -> tuple[float, Tensor]:
    value = (p.softmax(0) * (p.log_softmax(0) - q.log_softmax(0))).sum()
    return value.item(), torch.autograd.grad(value, by)[0]


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.t(23)
@pytest.mark.parametrize("seed", range(3))
def test_corrected_is_exact_in_value_and_gradient_on_and_off_the_policy(seed: int) -> None:
    policy, old, reference = logits(seed)
    value, slope = divergence(policy, reference, policy)
    for sampled in (policy.detach(), old):
        mean, actual = expected(KL(1.0, kl_estimator="corrected"), policy, sampled, reference)
        assert mean == pytest.approx(value, rel=1e-12)
        assert same(actual, slope)


@pytest.mark.t(23)
@pytest.mark.parametrize("seed", range(3))
def test_k3_has_the_value_of_kl_and_the_gradient_of_the_reverse_kl(seed: int) -> None:
    """At pi = pi_old, its value is KL(pi || ref) and its gradient that of KL(ref || pi)."""
    policy, old, reference = logits(seed)
    mean, actual = expected(KL(1.0, kl_estimator="k3"), policy, policy.detach(), reference)
    assert mean == pytest.approx(divergence(policy, reference, policy)[0], rel=1e-12)
    assert same(actual, divergence(reference, policy, policy)[1])
    assert not torch.allclose(actual, divergence(policy, reference, policy)[1], rtol=0.05, atol=1e-3)
    assert expected(KL(1.0, kl_estimator="k3"), policy, old, reference)[0] != pytest.approx(mean, rel=0.01)


@pytest.mark.t(23)
@pytest.mark.parametrize("seed", range(3))
def test_k2_has_the_right_gradient_and_a_biased_value(seed: int) -> None:
    policy, old, reference = logits(seed)
    value, slope = divergence(policy, reference, policy)
    mean, actual = expected(KL(1.0, kl_estimator="k2"), policy, policy.detach(), reference)
    assert same(actual, slope)
    assert mean != pytest.approx(value, rel=0.01)
    assert not same(expected(KL(1.0, kl_estimator="k2"), policy, old, reference)[1], slope)


@pytest.mark.t(23)
def test_k2s_bias_is_of_second_order() -> None:
    policy, _, reference = logits()
    biases = []
    for h in (1e-2, 5e-3):
        near = (policy.detach() + h * reference).requires_grad_()
        mean = expected(KL(1.0, kl_estimator="k2"), near, near.detach(), policy.detach())[0]
        value = divergence(near, policy.detach(), near)[0]
        biases.append(abs(mean - value) / value)
    assert biases[0] < 0.02 and biases[1] < 0.6 * biases[0]


@pytest.mark.t(23)
def test_k1_is_the_divergence_as_a_metric_and_has_no_gradient_as_a_loss() -> None:
    policy, _, reference = logits()
    mean, actual = expected(kl_k1, policy, policy.detach(), reference)
    assert mean == pytest.approx(divergence(policy, reference, policy)[0], rel=1e-12)
    assert same(actual, torch.zeros(V, dtype=torch.float64))
    assert expected(kl_k3, policy, policy.detach(), reference)[0] == pytest.approx(mean, rel=1e-12)


@pytest.mark.t(23)
@pytest.mark.parametrize("seed", range(3))
def test_the_entropy_bonus_is_exact_in_value_and_gradient_on_and_off_the_policy(seed: int) -> None:
    policy, old, reference = logits(seed)
    entropy = -(policy.softmax(0) * policy.log_softmax(0)).sum()
    slope = torch.autograd.grad(entropy, policy)[0]
    for sampled in (policy.detach(), old):
        mean, actual = expected(EntropyBonus(0.3), policy, sampled, reference)
        assert mean == pytest.approx(-0.3 * entropy.item(), rel=1e-12)
        assert same(actual, -0.3 * slope)


def test_the_entropy_bonus_is_near_zero_for_a_certain_token() -> None:
    leaf = torch.tensor([-1e-9], dtype=torch.float64, requires_grad=True)
    b = pack([rollout_of([0.0], lengths=[1])]).having(logp=leaf, logp_old=leaf.detach())
    assert abs(torch.autograd.grad(EntropyBonus(1.0)(b).sum(), leaf)[0].item()) < 1e-8


@pytest.mark.t(24)
@pytest.mark.parametrize("form", ["k2", "k3", "corrected"])
def test_a_coefficient_of_0_needs_no_reference(form: Any) -> None:
    policy, old, reference = logits()
    b = every_token(policy, old, reference).having(measures={})
    bare = Batch(**{f: getattr(b, f) for f in b.__dataclass_fields__} | {"measures": {}})
    zero = KL(0.0, kl_estimator=form)
    assert needs(zero) == needs(Objective(penalties=(zero, EntropyBonus(0.0)))) == frozenset()
    assert zero(bare).tolist() == EntropyBonus(0.0)(bare).tolist() == [0.0] * V
    assert needs(Objective(penalties=(KL(0.1, kl_estimator=form, model="beside"),))) == frozenset({Logp("beside")})


@pytest.mark.t(24)
@pytest.mark.parametrize("form", ["k2", "k3", "corrected"])
@pytest.mark.parametrize("coefficient", [1.0, 1000.0])
def test_ascent_converges_to_the_closed_form_optimum(form: Any, coefficient: float) -> None:
    """Gradient ascent on A - c KL with exact expectations converges to ref exp(A / c), or to ref for a large c.

    k3 has the gradient of the reverse KL, so it converges to ref / (lambda - A / c) instead.
    """
    rng = torch.Generator().manual_seed(1)
    a, ref = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    policy = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    penalty = KL(1.0, kl_estimator=form)
    base = pack([rollout_of([0.0] * 5, lengths=[1] * 5)]).having(measures={Logp("reference"): ref.log_softmax(0)})
    for _ in range(400):
        logp = policy.log_softmax(0)
        b = base.having(logp=logp, logp_old=logp.detach())
        loss = (logp.exp().detach() * (penalty(b) - a / coefficient * logp)).sum()
        with torch.no_grad():
            policy -= torch.autograd.grad(loss, policy)[0]
    actual = policy.softmax(0)
    if coefficient == 1000:
        assert torch.allclose(actual, ref.softmax(0), atol=1e-3)
    if form == "k3":
        scale = (ref.softmax(0) / actual + a / coefficient).detach()
        assert torch.allclose(scale, scale.mean().expand(5), rtol=1e-4)
    else:
        assert torch.allclose(actual, (ref + a / coefficient).softmax(0), atol=1e-4)


def test_k3_keeps_the_gradient_of_impossible_tokens_and_never_overflows() -> None:
    """Only exp(x) can overflow. For x far below 0, k3 is linear; a clamp there would remove the gradient."""
    b = pack([rollout_of([0.0] * 2, lengths=[1, 1])])
    leaf = torch.tensor([-0.1, -800.0], dtype=torch.float64, requires_grad=True)
    b = b.having(logp=leaf, logp_old=leaf.detach(), measures={Logp("reference"): torch.tensor([-60.0, -0.1]).double()})
    k3 = KL(1.0)(b)
    assert k3[0].item() == pytest.approx(59.9 - 1) and math.isfinite(k3[1].item())
    slope = torch.autograd.grad(k3.sum(), leaf)[0]
    assert slope[0].item() == pytest.approx(1.0) and slope[1].item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "logp, old, reference",
    [
        (-15.0, -15.0, -0.5),  # x = 14.5: float32 loses the sum of exp(x) and -exp(x)
        (-20.9, -20.9, -1.0),  # x = 19.9
        (-21.1, -21.1, -1.0),  # x = 20.1
        (-21.5, -6.0, -1.0),  # off the policy
        (-31.0, -6.0, -1.0),  # the log-ratio is below -20
        (-1.0, -26.0, -3.0),  # it is above 20
    ],
)
def test_far_from_the_reference_the_gradient_is_exact(
    logp: float, old: float, reference: float, dtype: torch.dtype
) -> None:
    """corrected: -r x, with r clamped to exp(+-20). The entropy bonus: r log pi."""

    def slope(penalty: Any) -> float:
        leaf = torch.tensor([logp], dtype=dtype, requires_grad=True)
        b = pack([rollout_of([0.0], lengths=[1])])
        measures = {Logp("reference"): torch.tensor([reference], dtype=dtype)}
        b = b.having(logp=leaf, logp_old=torch.tensor([old], dtype=dtype), measures=measures)
        return torch.autograd.grad(penalty(b).sum(), leaf)[0].item()

    r = math.exp(min(max(logp - old, -20), 20))
    near = 1e-5 if dtype == torch.float32 else 1e-9
    assert slope(KL(1.0, kl_estimator="corrected")) == pytest.approx(-r * (reference - logp), rel=near)
    assert slope(EntropyBonus(1.0)) == pytest.approx(r * logp, rel=near)


def test_k3_is_never_negative() -> None:
    b = pack([rollout_of([0.0] * 101, lengths=[1] * 101)])
    x = torch.logspace(-18, 1, 101, dtype=torch.float64)
    for sign in (1, -1):
        ref = torch.full((101,), -12.0, dtype=torch.float64)
        assert (kl_k3(b.having(logp=ref - sign * x, measures={Logp("reference"): ref})) >= 0).all()


def test_invalid_penalties_are_refused() -> None:
    wrong = KL(0.1)
    object.__setattr__(wrong, "kl_estimator", "k1")  # the tests' type checker would refuse the constructor call
    with pytest.raises(ValueError, match="k2, k3 and corrected"):
        wrong.__post_init__()
    with pytest.raises(ValueError, match="without bound"):
        KL(-0.1)
    assert unsplit_unit(Objective(penalties=(KL(0.1),), aggregate=token_mean)) == "token"
