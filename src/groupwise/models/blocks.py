"""Weights in blocks that products of few rows read fastest: what an engine forwards is few rows at a time."""

import copy
import platform
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from groupwise.models.decoder import Decoder

__all__ = ["blocked", "forget"]

M = TypeVar("M", bound=nn.Module)

LEAST = 1 << 16
"""A weight of fewer numbers is multiplied as fast where it lies."""

FEW = 16
"""Rows that the blocks are laid out for. They serve any number, with the same bits a row."""


class Blocked(nn.Module):
    """What a linear layer computes, from a copy of its weight that is made when it is first asked and not held."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.blocks: Tensor | None = None

    def forward(self, x: Float[Tensor, "*n inputs"]) -> Float[Tensor, "*n outputs"]:
        if self.blocks is None:
            self.blocks = torch.ops.mkldnn._reorder_linear_weight(self.weight, FEW)
        return torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")


def blocked(model: M) -> M:
    """The same model for inference: its parameters themselves, but large float32 matrices are read from blocks.

    With oneDNN on x86, 16 rows times such a matrix take half the time; a model without any is returned as it is, and so
    is every model elsewhere, and a compiled one. Who changes the parameters calls `forget` before the next forward.
    """
    own = [*model.parameters(), *model.buffers()]
    if not any(map(gains, own)) or (isinstance(model, Decoder) and model.compiled):
        return model
    twin = copy.deepcopy(model, {id(x): x for x in own})
    for module in twin.modules():
        for name, part in module._modules.items():
            if type(part) is nn.Linear and gains(part.weight):
                module._modules[name] = Blocked(part.weight, part.bias)
    if isinstance(twin, Decoder) and twin.lm_head is None and gains(twin.unembedding):
        twin.lm_head = Blocked(twin.unembedding, None)  # and the tied one is a matrix of its own to the products
    return twin


def forget(model: nn.Module) -> None:
    """Let go of all blocks."""
    for module in model.modules():
        if isinstance(module, Blocked):
            module.blocks = None


def gains(weight: Tensor) -> bool:
    """Whether products with it are quicker from blocks, on this machine."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    here = x86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return here and weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST
