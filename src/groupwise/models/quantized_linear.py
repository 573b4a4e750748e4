"""Linear layers with frozen weights in 4 bits: the data type NF4 of QLoRA, by the kernels of bitsandbytes.

A block of `BLOCK` weights has one scale, its largest magnitude. Each weight is the nearest of 16 quantiles of a normal
distribution, times that scale. QLoRA, arXiv:2305.14314, section 3.

The layer `Linear4bit` of bitsandbytes is not used: on some CPUs it changes the layout of its weights while it
generates, and then sums in another precision than in training.
"""

import importlib
import logging
import sys
from functools import cache
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from groupwise.core import MissingRequirement

__all__ = [
    "BLOCK",
    "QuantizedLinear",
    "dequantize",
    "frozen_weights",
    "is_quantized",
    "load_bitsandbytes",
    "quantized_bytes",
]

BLOCK = 64
"""The number of weights with one scale."""
NF4: Literal["nf4"] = "nf4"


class QuantizedLinear(nn.Linear):
    """`W x + b` with a frozen `W` in 4 bits. `weight` has two weights per byte, `absmax` the scale of each block.

    The weights are dequantised to the dtype of `x` for each product, and again in the backward pass, so that no
    dequantised copy outlives a product. The gradient of `x` is that of a plain layer with the dequantised weights.
    """

    absmax: nn.Parameter

    def __init__(
        self, packed: UInt8[Tensor, "bytes 1"], absmax: Float[Tensor, " blocks"], bias: nn.Parameter | None,
        *, in_features: int, out_features: int,
    ) -> None:  # fmt: skip
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.absmax = nn.Parameter(absmax, requires_grad=False)
        self.register_parameter("bias", bias)

    @classmethod
    def of(cls, weight: Float[Tensor, "outputs inputs"], bias: nn.Parameter | None = None) -> "QuantizedLinear":
        """Quantise a weight matrix on its device. MissingRequirement without bitsandbytes."""
        exact = weight.float() if weight.dtype == torch.float64 else weight
        packed, state = load_bitsandbytes().functional.quantize_4bit(exact, blocksize=BLOCK, quant_type=NF4)
        outputs, inputs = weight.shape
        return cls(packed, state.absmax, bias, in_features=inputs, out_features=outputs)

    def forward(self, input: Float[Tensor, "*n inputs"]) -> Float[Tensor, "*n outputs"]:
        x = input
        if x.is_cuda and x.dtype != torch.float64:  # there a fused kernel multiplies few rows
            state = self._state(x.dtype, self.out_features, self.in_features)
            return load_bitsandbytes().matmul_4bit(x, self.weight, state, bias=self.bias)
        return cast(Tensor, _Product.apply(x, self.bias, self))

    def dequantized(self, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
        """The weight matrix, as products with an `x` of this dtype use it."""
        # As one row: on some CPUs the package ends the blocks of a matrix at its rows.
        state = self._state(torch.float32 if dtype == torch.float64 else dtype, self.out_features * self.in_features)
        row = load_bitsandbytes().functional.dequantize_4bit(self.weight.detach(), state)
        return row.view(self.out_features, self.in_features).to(dtype)

    def _state(self, dtype: torch.dtype, *shape: int) -> Any:
        return load_bitsandbytes().functional.QuantState(
            self.absmax.detach(), torch.Size(shape), blocksize=BLOCK, quant_type=NF4, dtype=dtype
        )


class _Product(torch.autograd.Function):
    """`W x + b` with dequantised weights, which its backward dequantises again instead of storing them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.dequantized(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.dequantized(gradient.dtype), None, None


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has layers in 4 bits."""
    return any(isinstance(module, QuantizedLinear) for module in model.modules())


@torch.no_grad()
def dequantize(model: nn.Module) -> None:
    """Replace the layers in 4 bits by plain ones, in the dtype of the model's other weights."""
    if not is_quantized(model):
        return
    dtype = next(weight.dtype for weight in model.parameters() if weight.is_floating_point())
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, QuantizedLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
                plain.weight = nn.Parameter(layer.dequantized(dtype))
                plain.register_parameter("bias", layer.bias)
                setattr(parent, name, plain)


def frozen_weights(model: nn.Module) -> int:
    """The number of a model's frozen weights, those in 4 bits included."""
    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    stored = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    packed = sum(layer.weight.numel() + layer.absmax.numel() for layer in layers)
    return stored - packed + sum(layer.out_features * layer.in_features for layer in layers)


def quantized_bytes(outputs: int, inputs: int) -> int:
    """The bytes of a weight matrix in 4 bits: half a byte for each weight, and a float32 scale for each block.

    >>> quantized_bytes(64, 64), 4 * 64 * 64
    (2304, 16384)
    """
    weights = outputs * inputs
    return -(-weights // 2) + 4 * -(-weights // BLOCK)


@cache
def load_bitsandbytes() -> Any:
    """The package `bitsandbytes`, imported late: the import takes seconds, and only weights in 4 bits need it.

    On some CPUs its import would load code from the hub, through the package `kernels`, which is hidden from it.
    """
    kernels, log = sys.modules.get("kernels"), logging.getLogger("bitsandbytes")
    level = log.level
    sys.modules["kernels"] = None  # pyright: ignore[reportArgumentType]  # an import of it fails
    log.setLevel(logging.ERROR)  # it warns that it has no such code
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        what, fix = "weights in 4 bits need bitsandbytes", "pip install 'groupwise[quantization]'"
        raise MissingRequirement(what, evidence=str(error), fix=fix) from error
    finally:
        log.setLevel(level)
        del sys.modules["kernels"]
        if kernels is not None:
            sys.modules["kernels"] = kernels
