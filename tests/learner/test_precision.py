"""The optimizer against torch's, half-precision weights with float32 masters, and recomputed layers."""

import math
import subprocess
import sys
from functools import partial

import pytest
import torch

from groupwise.learner import AdamW, Learner, StepPlan
from groupwise.learner.optimizer import Optimizer
from tests.learner.small import backward_pass, model
from tests.learner.test_gradients import OBJECTIVES, credited, learner

PLAN = StepPlan((tuple(range(6)), tuple(range(6, 12)), tuple(range(12, 24))))


def half(lr: float = 1e-2) -> Learner:
    return Learner(model(torch.bfloat16), optimizer=AdamW(lr=lr), steps=10, temperature=0.7)


def steps(it: Learner, n: int) -> Learner:
    for _ in range(n):
        assert not it.step(credited(dtype=torch.float32), PLAN, OBJECTIVES["tokens"]).skip_reason
    return it


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_the_optimizer_is_torchs_to_the_last_bit(dtype):
    settings = AdamW(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, max_grad_norm=0.5)
    draws = torch.Generator().manual_seed(5)
    ours = [torch.randn(5, 7, generator=draws, dtype=dtype), torch.randn(3, generator=draws, dtype=dtype)]
    theirs = [torch.nn.Parameter(x.clone()) for x in ours]
    optimizer = Optimizer(ours, settings)
    reference = torch.optim.AdamW(theirs, lr=9.0, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, fused=True)
    for number in range(5):
        gradients = [torch.randn(x.shape, generator=draws, dtype=dtype) for x in ours]
        for a, b, g in zip(ours, theirs, gradients):
            a.grad, b.grad = g.clone(), g.clone()
        if number == 2:
            ours[1].grad = theirs[1].grad = None  # a parameter without a gradient does not change
        norm = float(torch.nn.utils.get_total_norm(optimizer.gradients))
        torch.nn.utils.clip_grad_norm_(theirs, settings.max_grad_norm)
        reference.param_groups[0]["lr"] = settings.rate(number, 5)
        optimizer.step(settings.rate(number, 5), norm)
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    for i, kept in reference.state_dict()["state"].items():
        assert all(torch.equal(optimizer.state()[f"{i}.{name}"], x) for name, x in kept.items())


def test_no_compiler_is_imported_to_place_a_run_and_take_a_step():
    """torch.optim imports torch._dynamo and with it sympy: a second of every start. So does a fresh embedding."""
    code = """
import sys, torch
from groupwise.methods import gspo
from groupwise.training.build_run import build
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
it = build(Recipe(method=gspo()), UserCode()).new_learner()
for p in it.model.parameters():
    p.grad = torch.ones_like(p)
it.optimizer.step(1e-3, 1.0)
assert "torch._dynamo" not in sys.modules
old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
assert old or "sympy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_full_precision_weight_is_its_own_master(dtype):
    optimizer = learner(dtype).optimizer
    assert all(w is m for w, m in zip(optimizer.weights, optimizer.masters))
    assert not any(name.endswith("master") for name in optimizer.state())


def test_steps_below_a_weights_last_bit_add_up_in_its_master():
    """Twenty steps below a weight's last bit change the master only; enough of them change the weight."""
    weight = torch.ones(4, dtype=torch.bfloat16)
    optimizer = Optimizer([weight], AdamW(max_grad_norm=1e9))
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        optimizer.gather()
        optimizer.step(1e-3 / 128, 1.0)
        optimizer.zero_grad()
    assert torch.equal(weight, torch.ones_like(weight)) and bool((optimizer.masters[0] < 1 - 15e-3 / 128).all())
    for _ in range(20):
        weight.grad = torch.ones_like(weight)
        optimizer.gather()
        optimizer.step(0.05 / 128, 1.0)
        optimizer.zero_grad()
    assert bool((weight == 1 - 1 / 128).all() | (weight == 1 - 1 / 256).all())
    assert torch.equal(weight, optimizer.masters[0].bfloat16())


def test_gradients_of_microbatches_add_up_in_float32():
    """A large gradient, then many small ones that a bfloat16 sum would lose."""
    weight = torch.zeros(2, dtype=torch.bfloat16)
    optimizer = Optimizer([weight], AdamW())
    for g in [256.0] + 64 * [0.25]:
        weight.grad = torch.full_like(weight, g)
        optimizer.gather()
    assert optimizer.gradients[0].tolist() == [272.0, 272.0] and weight.grad is None


def test_half_precision_moves_like_float32_where_float32_moves():
    """Ten steps too small for bfloat16 weights: the masters follow a float32 learner."""
    low, full = half(1e-4), Learner(model(torch.float32), optimizer=AdamW(lr=1e-4), steps=10, temperature=0.7)
    full.model.load_state_dict({n: x.float() for n, x in low.model.state_dict().items()})  # equal initial weights
    start = torch.cat([m.flatten().clone() for m in low.optimizer.masters])
    steps(low, 10), steps(full, 10)
    a = torch.cat([m.flatten() for m in low.optimizer.masters]) - start
    b = torch.cat([m.detach().flatten() for m in full.optimizer.masters]) - start
    assert float(torch.nn.functional.cosine_similarity(a, b, dim=0)) > 0.9
    assert all(w.dtype == torch.bfloat16 for w in low.weights().values())
    assert all(torch.equal(w, m.bfloat16()) for w, m in zip(low.optimizer.weights, low.optimizer.masters))


def test_half_precision_resumes_with_equal_bits():
    whole, first = steps(half(), 4), steps(half(), 2)
    tensors, state = first.state()
    second = half()
    second.restore({name: x.clone() for name, x in tensors.items()}, state)
    steps(second, 2)
    a, b = whole.state()[0], second.state()[0]
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    masters = [x for name, x in a.items() if name.endswith("master")]
    assert len(masters) == len(list(whole.model.parameters())) and {x.dtype for x in masters} == {torch.float32}
    assert any(not torch.equal(x, x.bfloat16().float()) for x in masters)  # finer than the weights


def noted(held: list[int], x: torch.Tensor) -> torch.Tensor:
    held.append(x.nbytes)
    return x


@pytest.mark.parametrize("long", (64, 5))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_recomputed_layers_have_bit_equal_gradients(dtype, long, monkeypatch: pytest.MonkeyPatch):
    """On one thread. Activations are freed and recomputed: fewer bytes are saved for backward."""
    monkeypatch.setattr("groupwise.models.decoder.prefix_packing.LONG", long)
    found, kept = [], []
    for recompute in (False, True):
        it = Learner(model(dtype), optimizer=AdamW(lr=1e-2), steps=10, temperature=0.7)
        it.model.model.recompute = recompute
        batch = credited(dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
        held: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(partial(noted, held), lambda x: x):
            backward_pass(it, OBJECTIVES["groups"].prepare(batch.take(PLAN.samples)), PLAN, OBJECTIVES["groups"])
        found.append([g.clone() for g in it.optimizer.gradients])
        kept.append(sum(held))
    assert found[0] and all(torch.equal(a, b) for a, b in zip(*found))
    assert kept[1] < 0.5 * kept[0]


def test_the_gradient_norm_is_summed_in_float64(monkeypatch: pytest.MonkeyPatch):
    """A float32 sum loses the small squares beside the large one; the size of the chunks does not matter."""
    weight = torch.nn.Parameter(torch.zeros(300))
    other = torch.nn.Parameter(torch.zeros(7, 3))
    it = Optimizer((weight, other, torch.nn.Parameter(torch.zeros(2))), AdamW())
    assert it.norm() == 0.0
    weight.grad = torch.full((300,), 1e-4)
    weight.grad[150] = 1.0
    other.grad = torch.full((7, 3), 2e-4)
    exact = math.sqrt(math.fsum(float(x) ** 2 for g in (weight.grad, other.grad) for x in g.flatten()))
    for chunk in (1 << 22, 7):
        monkeypatch.setattr("groupwise.learner.optimizer.AT_ONCE", chunk)
        assert it.norm() == pytest.approx(exact, rel=1e-15)
    assert exact != 1.0
    weight.grad[3] = torch.nan
    assert math.isnan(it.norm())
