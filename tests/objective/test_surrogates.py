import math
from typing import Any

import pytest
import torch

from groupwise.data import Batch, Segments, pack, rollout_of
from groupwise.methods import SoftGate
from groupwise.objective import Clip, ClippedWeight, ReportsClipping, UnclippedSurrogate, policy_gradient


def at(surrogate: Any, r: float, a: float) -> tuple[float, float]:
    """Value and derivative by the ratio, where the ratio is exactly r."""
    leaf = torch.tensor([r], dtype=torch.float64, requires_grad=True)
    b: Batch = pack([rollout_of([0.0], lengths=[1])])
    b = b.having(logp=leaf, advantage=torch.tensor([a], dtype=torch.float64))
    value = surrogate(b)
    return value.item(), torch.autograd.grad(value.sum(), leaf)[0].item()


def as_it_is(b: Batch) -> torch.Tensor:
    return b.logp


UP = math.nextafter
CORNERS = [
    # ratio, advantage, clipped value or None, whatever the side
    (1.0, 2.0, None), (1.0, -2.0, None),
    (1.28, 2.0, None), (UP(1.28, 2), 2.0, 1.28), (1.5, 2.0, 1.28), (100.0, 2.0, 1.28),
    (1.28, -2.0, None), (1.5, -2.0, None), (100.0, -2.0, None),
    (0.8, -2.0, None), (UP(0.8, 0), -2.0, 0.8), (0.5, -2.0, 0.8), (0.0, -2.0, 0.8),
    (0.8, 2.0, None), (0.5, 2.0, None), (0.0, 2.0, None),
]  # fmt: skip


@pytest.mark.t(17)
@pytest.mark.parametrize("r, a, bound", CORNERS)
def test_clip_at_every_corner(r: float, a: float, bound: float | None) -> None:
    value, slope = at(Clip(0.2, 0.28, ratio=as_it_is), r, a)
    assert value == (r if bound is None else bound) * a
    assert slope == (a if bound is None else 0.0)
    b = pack([rollout_of([0.0], lengths=[1])])
    b = b.having(logp=torch.tensor([r], dtype=torch.float64), advantage=torch.tensor([a], dtype=torch.float64))
    low, high = Clip(0.2, 0.28, ratio=as_it_is).clipped(b)
    assert (low.item(), high.item()) == (bound is not None and a < 0, bound is not None and a > 0)


@pytest.mark.t(17)
@pytest.mark.parametrize("r", [0.0, 0.5, 0.8, 1.0, 1.28, 3.0])
@pytest.mark.parametrize(
    "part", [Clip(0.2, 0.28), ClippedWeight(0.0, 1.28), UnclippedSurrogate(), SoftGate(), policy_gradient]
)
def test_no_advantage_no_gradient(part: Any, r: float) -> None:
    b = pack([rollout_of([0.0], lengths=[1])])
    leaf = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    b = b.having(logp=leaf, logp_old=leaf.detach() - math.log(r or 1e-9), advantage=torch.zeros(1, dtype=torch.float64))
    value = part(b)
    assert value.item() == 0 and torch.autograd.grad(value.sum(), leaf)[0].item() == 0


@pytest.mark.t(17)
def test_a_lower_bound_below_0_is_never_active() -> None:
    """R1's clip of 10 has a lower bound of 1 - 10 < 0, so only the upper bound can be active."""
    assert at(Clip(10, 10, ratio=as_it_is), 0.0, -1.0) == (0.0, -1.0)
    assert at(Clip(10, 10, ratio=as_it_is), 11.5, 1.0) == (11.0, 0.0)


@pytest.mark.t(17)
@pytest.mark.parametrize("a", [2.0, -2.0])
@pytest.mark.parametrize("r, weight", [(0.1, 0.5), (0.5, 0.5), (0.7, 0.7), (1.28, 1.28), (1.3, 1.28), (9.0, 1.28)])
def test_a_clipped_weight_keeps_every_gradient(r: float, weight: float, a: float) -> None:
    leaf = torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)
    b = pack([rollout_of([0.0], lengths=[1])])
    b = b.having(logp=leaf, advantage=torch.tensor([a], dtype=torch.float64))
    part = ClippedWeight(0.5, 1.28, ratio=lambda b: torch.full_like(b.logp, r))
    value = part(b)
    assert value.item() == pytest.approx(weight * a * -1.5, rel=1e-15)
    assert torch.autograd.grad(value.sum(), leaf)[0].item() == pytest.approx(weight * a, rel=1e-15)
    low, high = part.clipped(b)
    assert (low.item(), high.item()) == (r < 0.5, r > 1.28)


def test_the_gates_temperature_depends_on_the_sign() -> None:
    gate = SoftGate(1.0, 3.0, ratio=as_it_is)
    for a, tau in ((2.0, 1.0), (-2.0, 3.0)):
        p = 1 / (1 + math.exp(-tau * 0.5))
        assert at(gate, 1.5, a) == (pytest.approx(4 / tau * p * a), pytest.approx(4 * p * (1 - p) * a))
    assert at(gate, 1.0, -2.0) == (pytest.approx(2 / 3 * -2.0), pytest.approx(-2.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(low=-0.1), lambda: Clip(high=-0.1), lambda: ClippedWeight(floor=-1.0),
        lambda: ClippedWeight(floor=1.1), lambda: ClippedWeight(cap=0.28), lambda: SoftGate(tau_positive=0.0),
        lambda: SoftGate(tau_negative=-1.0), lambda: SoftGate(tau_negative=math.inf),
    ],
)  # fmt: skip
def test_invalid_constants_are_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


def test_only_surrogates_with_bounds_have_clipped() -> None:
    surrogates = (Clip(), ClippedWeight(), UnclippedSurrogate(), SoftGate(), policy_gradient)
    assert [isinstance(p, ReportsClipping) for p in surrogates] == [True, True, True, False, False]


def test_an_empty_batch_has_no_tokens_to_clip() -> None:
    b = pack([rollout_of([0.0], lengths=[0])])
    empty = torch.zeros(0, dtype=torch.float64)
    b = b.having(logp=empty, logp_old=empty, advantage=empty)
    assert isinstance(b.sequences, Segments)
    for part in (Clip(), ClippedWeight(), UnclippedSurrogate(), SoftGate(), policy_gradient):
        assert part(b).shape == (0,)
