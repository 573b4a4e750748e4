"""RMSNorm against its formula, forward and backward."""

import pytest
import torch
from torch import Tensor

from groupwise.models.decoder.rms_norm import RMSNorm
from tests.pretended_gpu import counted, pretended_gpu


def world(dtype: torch.dtype) -> tuple[RMSNorm, Tensor]:
    draw = torch.Generator().manual_seed(0)
    norm = RMSNorm(7, eps=1e-3).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(7, generator=draw, dtype=torch.float64))
    return norm, torch.randn(3, 2, 7, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()


def test_the_gradient_equals_finite_differences() -> None:
    norm, x = world(torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)), (x, norm.weight)
    )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_the_norm_equals_its_formula(dtype: torch.dtype, tolerance: float) -> None:
    norm, x = world(dtype)
    y = norm(x)
    with torch.no_grad():
        assert torch.equal(norm(x), y)
    y.backward(torch.ones_like(y))
    plain_x, plain_w = (t.detach().double().requires_grad_() for t in (x, norm.weight))
    plain = plain_x / (plain_x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * plain_w
    plain.sum().backward()
    for own, other in ((y, plain), (x.grad, plain_x.grad), (norm.weight.grad, plain_w.grad)):
        assert own is not None and other is not None and own.dtype == dtype
        torch.testing.assert_close(own.double(), other, rtol=tolerance, atol=tolerance)


def test_frozen_weights_get_no_gradient() -> None:
    norm, x = world(torch.float32)
    norm.requires_grad_(False)
    norm(x).sum().backward()
    assert norm.weight.grad is None and x.grad is not None


def test_a_norm_on_a_gpu_is_one_kernel_forward_and_one_backward() -> None:
    """In half precision; float32 has the formula of a CPU."""
    plain, x = world(torch.bfloat16)
    exact, y = world(torch.float32)
    here = plain(x)
    here.sum().backward()
    with pretended_gpu() as device:
        norm, there = world(torch.bfloat16)
        norm.to(device)
        there = there.detach().to(device).requires_grad_()
        with counted() as forward:
            out = norm(there)
        out.sum().backward()
        assert (forward.kernels, forward.operations["rms_norm"]) == (1, 1)
        torch.testing.assert_close(out.detach().cpu(), here.detach(), rtol=0.02, atol=0.02)
        torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=0.02, atol=0.02)
        torch.testing.assert_close(norm.weight.grad.cpu(), plain.weight.grad, rtol=0.02, atol=0.05)
        with counted() as slow:
            exact.to(device)(y.detach().to(device))
    assert slow.operations["rms_norm"] == 0
