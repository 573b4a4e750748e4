"""AdamW with learning-rate schedule, gradient clipping, and float32 master weights."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from groupwise.core import check_types
from groupwise.learner.distributed import Alone, Ranks

__all__ = ["AdamW"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Settings of AdamW (arXiv:1711.05101). `max_grad_norm` bounds the global norm of a step's gradient.

    The learning rate rises linearly over the first `warmup_steps` optimizer steps. Then it stays (`constant`) or falls
    to 0 at the end of the run (`linear`, `cosine`).

    >>> a = AdamW(lr=1.0, warmup_steps=2, lr_scheduler="linear")
    >>> [a.rate(step, 6) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    warmup_steps: int = 0
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"

    def __post_init__(self) -> None:
        check_types(self)
        valid = (
            self.max_grad_norm > 0
            and self.eps > 0
            and self.warmup_steps >= 0
            and all(0 <= beta < 1 for beta in self.betas)
        )
        if not (valid and 0 <= self.lr < math.inf and 0 <= self.weight_decay < math.inf):
            raise ValueError(
                f"{self}\nneeds lr, weight_decay and warmup_steps >= 0, eps and max_grad_norm > 0, 0 <= betas < 1"
            )

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of optimizer step number `step` (from 0) in a run of `steps` steps."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.lr_scheduler == "constant":
            return self.lr
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        return self.lr * (1 - progress if self.lr_scheduler == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))


AT_ONCE = 1 << 22
"""How many entries of a gradient are converted to float64 at a time."""

BLOCK = 64
"""Tensors are padded to a multiple of this size: the fused kernel rounds vectors that are not full differently."""


class Optimizer:
    """AdamW on a model's parameters, with a float32 master copy of each half-precision parameter.

    An update below the last bit of a half-precision weight (1/256 of it) stays in the master; the weight is the master,
    rounded. A float32 or float64 parameter is its own master. The update is torch's fused `adamw`. The class
    `torch.optim.AdamW` gives the same bits, but spends a second on imports that are unused here. Of sharded parameters
    it updates the rows that this rank holds, since the update is elementwise.
    """

    def __init__(self, parameters: Iterable[Tensor], settings: AdamW, ranks: Ranks = Alone()) -> None:  # noqa: B008
        self.settings, self.ranks = settings, ranks
        self._parameters = tuple(parameters)
        self.weights = tuple(ranks.local(x.detach()) if ranks.shards else x for x in self._parameters)
        self.masters = tuple(w.detach().float() if w.dtype.itemsize < 4 else w for w in self.weights)
        self._moments = tuple((torch.zeros_like(m), torch.zeros_like(m)) for m in self.masters)
        self._counts = tuple(torch.zeros((), device=m.device) for m in self.masters)  # steps of each

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the master weights. Weights without a gradient are left out."""
        return [m.grad for m in self.masters if m.grad is not None]

    def norm(self) -> float:
        """The global norm of the gradients, summed in float64: first each row, then all rows.

        A float32 sum of squares over a large model loses digits. Rows are on one rank, so the order of the sum does not
        depend on the number of ranks.
        """
        present = [(m.grad, x) for m, x in zip(self.masters, self._parameters, strict=True) if m.grad is not None]
        if not present:
            return 0.0
        rows = self.ranks.whole([row_norms(g) for g, _ in present], [len(x) if x.ndim else 1 for _, x in present])
        return float(torch.linalg.vector_norm(torch.cat(rows)))

    def gather(self) -> None:
        """Add a microbatch's gradients to the accumulated ones, in the precision of the master weights."""
        for parameter, weight in zip(self._parameters, self.weights, strict=True):
            if parameter is not weight and parameter.grad is not None:
                weight.grad, parameter.grad = self.ranks.local(parameter.grad), None
        for weight, master in zip(self.weights, self.masters):
            if master is not weight and weight.grad is not None:
                grad = weight.grad.to(master.dtype)
                master.grad = grad if master.grad is None else master.grad.add_(grad)
                weight.grad = None

    @torch.no_grad()
    def step(self, rate: float, norm: float) -> None:
        """Clip the accumulated gradients, which have the global norm `norm`; update with the learning rate `rate`."""
        at = [i for i, m in enumerate(self.masters) if m.grad is not None]
        masters, counts = [self.masters[i] for i in at], [self._counts[i] for i in at]
        total = torch.tensor(norm, dtype=masters[0].dtype)
        torch.nn.utils.clip_grads_with_norm_(masters, self.settings.max_grad_norm, total)
        moments = [[self._moments[i][k] for i in at] for k in (0, 1)]
        updated = [masters, *moments]
        blocks = [[self._blocks(x) for x in tensors] for tensors in updated]
        adamw(
            blocks[0],
            [self._blocks(gradient) for gradient in self.gradients],
            blocks[1],
            blocks[2],
            [],
            counts,
            fused=True,
            lr=rate,
            beta1=self.settings.betas[0],
            beta2=self.settings.betas[1],
            weight_decay=self.settings.weight_decay,
            eps=self.settings.eps,
            amsgrad=False,
            maximize=False,
        )
        for tensors, copies in zip(updated, blocks):
            for tensor, block in zip(tensors, copies, strict=True):
                if block is not tensor:
                    tensor.copy_(block[: tensor.numel()].view_as(tensor))
        for weight, master in zip(self.weights, self.masters):
            if master is not weight:
                weight.copy_(master)

    def _blocks(self, x: Tensor) -> Tensor:
        """The tensor itself, or a copy with zeros at its end if a shard of it may have no whole number of blocks.

        Otherwise the last entries of a shard would have other bits than the same entries within the whole tensor. One
        lane has no shards, and the bits of torch.
        """
        missing = -x.numel() % BLOCK if self.ranks.lanes > 1 else 0
        return torch.nn.functional.pad(x.flatten(), (0, missing)) if missing else x

    def zero_grad(self) -> None:
        """Drop all gradients, after a step was taken or skipped."""
        for x in (*self._parameters, *self.weights, *self.masters):
            x.grad = None

    def state(self) -> dict[str, Tensor]:
        """The optimizer's tensors for a checkpoint, from which `restore` continues bit for bit. Weights are not
        included.
        """
        state: dict[str, Tensor] = {}
        for i, (weight, master) in enumerate(zip(self.weights, self.masters)):
            state |= {f"{i}.step": self._counts[i], f"{i}.exp_avg": self._moments[i][0]}
            state[f"{i}.exp_avg_sq"] = self._moments[i][1]
            if master is not weight:
                state[f"{i}.master"] = master
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors of `state()` back."""
        for name, tensor in self.state().items():
            tensor.copy_(self.ranks.shard(state[name], tensor))


def row_norms(gradient: Tensor) -> Tensor:
    """The norm of each row of a gradient, in float64. An entry of a vector is a row."""
    rows = gradient.flatten(1) if gradient.ndim > 1 else gradient.reshape(-1, 1)
    at_once = max(1, AT_ONCE // max(1, rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in rows.split(at_once)])
