"""Blocked log-probs of a linear head: values and gradients equal those of the plain softmax, for any block size."""

import pytest
import torch

from groupwise.learner import linear_logprobs as room
from groupwise.learner.forward import chunked_logprobs
from groupwise.learner.linear_logprobs import linear_logprobs


def environment(dtype: torch.dtype = torch.float64, v: int = 700) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 6, dtype=dtype, generator=draw)
    weight = 3 * torch.randn(v, 6, dtype=dtype, generator=draw)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(v, (23,), generator=draw)


@pytest.fixture(params=[1, 4, 256], autouse=True)
def narrowest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "NARROWEST", request.param)


@pytest.mark.t(5)
@pytest.mark.parametrize("logits", [1, 23 * 100, 10**9])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equals_the_plain_softmax(logits: int, temperature: float) -> None:
    hidden, weight, target = environment(v=97)
    along = torch.randn(23, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = []
    for logp in (
        linear_logprobs(hidden, weight, target, temperature=temperature, logits_at_once=logits),
        chunked_logprobs(lambda x: x @ weight.T, hidden, target, temperature=temperature, logits_at_once=10**9),
    ):
        gradients = torch.autograd.grad((logp[0] * along).sum(), (hidden, weight))
        pairs.append([*logp, *gradients])
    for fast, plain in zip(*pairs):
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)
    assert not linear_logprobs(hidden, weight, target, temperature=1.0, logits_at_once=logits)[1].requires_grad


@pytest.mark.parametrize("logits", [1, 10**9])
def test_the_gradient_equals_finite_differences(logits: int) -> None:
    hidden, weight, target = environment(v=11)

    def logp(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return linear_logprobs(h, w, target, temperature=0.7, logits_at_once=logits)[0]

    assert torch.autograd.gradcheck(logp, (hidden, weight))


def test_large_logits_and_certain_tokens_stay_finite() -> None:
    hidden, weight, target = environment(torch.float32)
    logp, entropy = linear_logprobs(hidden * 100, weight, target, temperature=1.0, logits_at_once=23 * 256)
    assert logp.isfinite().all() and entropy.isfinite().all() and (entropy >= -1e-4).all()
    logp.sum().backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all()


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, target = environment()
    logp, _ = linear_logprobs(hidden, weight.detach(), target, temperature=1.0, logits_at_once=1)
    logp.sum().backward()
    assert hidden.grad is not None


def test_memory_is_flat_in_the_vocabulary() -> None:
    """No tensor as large as all logits is allocated, neither in forward nor in backward."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 2 and len(out) == 23:
                largest = max(largest, out.numel())
            return out

    hidden, weight, target = environment(v=5000)
    with Watch():
        linear_logprobs(hidden, weight, target, temperature=1.0, logits_at_once=23 * 300)[0].sum().backward()
    assert 0 < largest <= 23 * 300
