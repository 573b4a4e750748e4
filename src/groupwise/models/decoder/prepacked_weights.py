"""Copies of weights in a blocked memory layout, for faster matrix products with few rows, as in decoding."""

import copy
import platform
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groupwise.models.decoder.decoder import Decoder

__all__ = ["drop_blocks", "with_blocked_weights"]

M = TypeVar("M", bound=nn.Module)

LEAST = 1 << 16
"""The smallest number of elements of a weight matrix for which the blocked layout is used."""

FEW = 16
"""The number of input rows that the blocks are laid out for. Other numbers of rows give the same bits in each row."""


class PrepackedLinear(nn.Module):
    """A linear layer that also holds its weight in a blocked memory layout, from first use until `drop_blocks`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.blocks: Tensor | None = None

    def forward(self, x: Float[Tensor, "*n inputs"]) -> Float[Tensor, "*n outputs"]:
        if self.blocks is None:
            self.blocks = torch.ops.mkldnn._reorder_linear_weight(self.weight, FEW)
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")


def with_blocked_weights(model: M) -> M:
    """A copy of the model for inference: it shares the parameters, but multiplies large float32 matrices by blocks.

    With oneDNN on x86, 16 rows times such a matrix take half the time. Elsewhere, without such matrices, and for a
    compiled model, the model itself is returned. After a change of the parameters, call `drop_blocks` before the next
    forward.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if not any(map(gains, tensors)) or (isinstance(model, Decoder) and model.compiled):
        return model
    twin = copy.deepcopy(model, {id(x): x for x in tensors})
    for module in list(twin.modules()):
        for name, part in module.named_children():
            if type(part) is nn.Linear and gains(part.weight):
                setattr(module, name, PrepackedLinear(part.weight, part.bias))
    if isinstance(twin, Decoder) and twin.lm_head is None and gains(twin.unembedding):
        twin.lm_head = PrepackedLinear(twin.unembedding, None)  # the twin's head no longer shares the embedding
    return twin


def drop_blocks(model: nn.Module) -> None:
    """Free all blocked copies; they are made again on the next use."""
    for module in model.modules():
        if isinstance(module, PrepackedLinear):
            module.blocks = None


def gains(weight: Tensor) -> bool:
    """Whether the blocked layout is used for this weight: float32, at least `LEAST` elements, x86 CPU with oneDNN."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    available = x86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return available and weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST
