"""The CPU reference of torch's fused RMSNorm on CUDA: the pretended GPU runs it in the kernel's place.

On CUDA `F.rms_norm` is one kernel, and its backward is another. Elsewhere torch computes it by several operations, so
the pretended GPU sets these operators in its place. They sum in float32, and round once.
"""

from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("groupwise_tests", "DEF")
LIBRARY.define("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")
LIBRARY.define("rms_norm_backward(Tensor grad, Tensor x, Tensor scale, Tensor weight) -> (Tensor, Tensor)")


def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm, and `1 / rms(x)` in float32."""
    scale = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x.float() * scale * weight.float()).to(x.dtype), scale


def backward(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight."""
    unit, g = x.float() * scale, grad.float()
    by_unit = g * weight.float()
    to_x = scale * (by_unit - unit * (by_unit * unit).mean(-1, keepdim=True))
    return to_x.to(x.dtype), (g * unit).flatten(0, -2).sum(0).to(weight.dtype)


class Fused(torch.autograd.Function):
    """`F.rms_norm` with one kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, scale = torch.ops.groupwise_tests.rms_norm(x, weight, eps)
        ctx.save_for_backward(x, scale, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_x, to_weight = torch.ops.groupwise_tests.rms_norm_backward(grads[0], *ctx.saved_tensors)
        return to_x, to_weight, None


def rms_norm(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
    """`torch.nn.functional.rms_norm` over the last dimension."""
    assert tuple(shape) == tuple(x.shape[-1:]) == tuple(weight.shape) and x.dtype == weight.dtype
    return Fused.apply(x, weight, eps)  # type: ignore[return-value]


KERNELS: dict[str, Any] = {
    "groupwise_tests.rms_norm.default": forward,
    "groupwise_tests.rms_norm_backward.default": backward,
}
"""Operators that the pretended GPU runs by functions of this file."""
