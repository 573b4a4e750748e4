"""NF4 as QLoRA defines it, in operations of torch: bitsandbytes for environments without it, and on the pretended GPU.

arXiv:2305.14314, section 3 and appendix E. `models/test_bitsandbytes.py` compares it with the package bit for bit.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TABLE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def get_4bit_type(kind: str, device: Any = "cpu") -> Tensor:
    assert kind == "nf4"
    return torch.tensor(TABLE, device=device)


@dataclass
class QuantState:
    absmax: Tensor
    shape: torch.Size
    blocksize: int
    quant_type: str
    dtype: torch.dtype


def quantize_4bit(weight: Tensor, blocksize: int, quant_type: str) -> tuple[Tensor, QuantState]:
    numbers = F.pad(weight.flatten().float(), (0, -weight.numel() % blocksize)).view(-1, blocksize)
    absmax = numbers.abs().amax(1)
    scaled = (numbers * (1 / absmax.clamp(min=1e-38))[:, None]).clamp(-1, 1).flatten()[: weight.numel()]
    table = get_4bit_type(quant_type, weight.device)
    codes = torch.bucketize(scaled, (table[1:] + table[:-1]) / 2).to(torch.uint8)
    codes = F.pad(codes, (0, len(codes) % 2), value=TABLE.index(0.0))
    packed = (codes[::2] << 4) | codes[1::2]
    return packed[:, None], QuantState(absmax, weight.shape, blocksize, quant_type, weight.dtype)


def dequantize_4bit(packed: Tensor, state: QuantState) -> Tensor:
    codes = torch.stack([packed[:, 0] >> 4, packed[:, 0] & 15], 1).flatten()[: state.shape.numel()]
    scales = state.absmax.repeat_interleave(state.blocksize, output_size=len(state.absmax) * state.blocksize)
    numbers = get_4bit_type(state.quant_type, packed.device)[codes.long()] * scales[: len(codes)]
    return numbers.view(state.shape).to(state.dtype)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, state: QuantState) -> Tensor:
        ctx.packed, ctx.state = packed, state
        return F.linear(x, dequantize_4bit(packed, state), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient @ dequantize_4bit(ctx.packed, ctx.state), None, None, None


def matmul_4bit(x: Tensor, packed: Tensor, state: QuantState, bias: Tensor | None = None) -> Tensor:
    result = Product.apply(x, packed, bias, state)
    assert isinstance(result, Tensor)
    return result


functional = SimpleNamespace(
    QuantState=QuantState, dequantize_4bit=dequantize_4bit, get_4bit_type=get_4bit_type, quantize_4bit=quantize_4bit
)
