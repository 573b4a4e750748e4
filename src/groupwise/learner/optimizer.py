"""AdamW with learning-rate schedule, gradient clipping, float32 master weights, and moments in 8 bits if wanted."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from groupwise.core import check_types
from groupwise.learner.distributed import Ranks, SingleProcess
from groupwise.learner.quantized_moments import Moment8bit

__all__ = ["AdamW", "AdamW8bit"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW8bit(AdamW):
    """AdamW whose moments of matrices have 8 bits, with a float32 scale for each 256 of a row. arXiv:2110.02861.

    It needs 2 bytes per weight in place of 8. Moments of vectors, and master weights, stay float32. The update is
    AdamW's on the stored moments, in float32.
    """


AT_ONCE = 1 << 22
"""How many entries of a gradient are converted to float64, or of 8-bit moments to float32, at a time."""

HOST = torch.device("cpu")
Moment = Tensor | Moment8bit

BLOCK = 64
"""Tensors are padded to a multiple of this size: the fused kernel rounds vectors that are not full differently."""


class Optimizer:
    """The optimizer: AdamW on a model's parameters, with a float32 master copy of each half-precision parameter.

    An update below the last bit of a half-precision weight (1/256 of it) stays in the master; the weight is the master,
    rounded. A float32 or float64 parameter is its own master. The update is torch's fused `adamw`. The class
    `torch.optim.AdamW` gives the same bits, but spends a second on imports that are unused here. Of sharded parameters
    it updates the rows that this rank holds, since the update is elementwise; those of half-precision parameters are
    float32, and the masters themselves.

    With `offload`, moments and masters are in the memory of the host, but between `load` and `unload`.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        settings: AdamW,
        ranks: Ranks = SingleProcess(),  # noqa: B008
        *,
        offload: bool = False,
    ) -> None:
        self.settings, self.ranks, self.offload = settings, ranks, offload
        self._parameters = tuple(parameters)
        self.weights = tuple(ranks.local(x.detach()) if ranks.shards else x for x in self._parameters)
        home = HOST if offload else None
        self.masters = tuple(
            w.detach().float().to(home or w.device) if w.dtype.itemsize < 4 else w for w in self.weights
        )
        self._in_half = tuple(ranks.model_dtype(x).itemsize < 4 for x in self._parameters)
        self._moments = tuple(self._new_moments(x, home) for x in self.masters)
        self._counts = tuple(torch.zeros((), device=w.device) for w in self.weights)  # steps of each

    def _new_moments(self, master: Tensor, device: torch.device | None) -> tuple[Moment, Moment]:
        """Both moments of a weight, 0. Those of matrices may have 8 bits."""
        if isinstance(self.settings, AdamW8bit) and master.ndim > 1:
            first, second = (Moment8bit.zeros_like(master, signed=s, device=device) for s in (True, False))
            return first, second
        return torch.zeros_like(master, device=device), torch.zeros_like(master, device=device)

    def load(self) -> None:
        """Move moments and masters to the device of the weights, if they are elsewhere."""
        if self.offload:
            self._move([w.device for w in self.weights])

    def unload(self) -> None:
        """Move moments and masters to the memory of the host, if `offload` is set. Gradients must have been dropped."""
        if self.offload:
            self._move([HOST] * len(self.weights))

    def _move(self, devices: Sequence[torch.device]) -> None:
        masters = zip(self.masters, self.weights, devices, strict=True)
        self.masters = tuple(m if m is w else m.to(device) for m, w, device in masters)
        moments = zip(self._moments, devices, strict=True)
        self._moments = tuple((first.to(device), second.to(device)) for (first, second), device in moments)

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
        masters = [self.masters[i] for i in at]
        total = torch.tensor(norm, dtype=masters[0].dtype)
        torch.nn.utils.clip_grads_with_norm_(masters, self.settings.max_grad_norm, total)
        stored = [i for i in at if isinstance(self._moments[i][0], Moment8bit)]
        if exact := [i for i in at if i not in stored]:
            moments = [[tensor_of(self._moments[i][k]) for i in exact] for k in (0, 1)]
            gradients = [gradient_of(self.masters[i]) for i in exact]
            self._update([self.masters[i] for i in exact], gradients, moments, [self._counts[i] for i in exact], rate)
        for i in stored:
            self._update_by_rows(i, rate)
        for weight, master in zip(self.weights, self.masters):
            if master is not weight:
                weight.copy_(master)

    def _update(
        self,
        masters: list[Tensor],
        gradients: list[Tensor],
        moments: list[list[Tensor]],
        counts: list[Tensor],
        rate: float,
    ) -> None:
        """Update masters, moments and counts of steps in place, by torch's fused kernel."""
        updated = [masters, *moments]
        blocks = [[self._blocks(x) for x in tensors] for tensors in updated]
        adamw(
            blocks[0],
            [self._blocks(gradient) for gradient in gradients],
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

    def _update_by_rows(self, i: int, rate: float) -> None:
        """Update a matrix whose moments have 8 bits, about `AT_ONCE` entries at a time."""
        pair, master = self._moments[i], self.masters[i]
        rows, gradients = master.detach().flatten(1), gradient_of(master).flatten(1)
        before = self._counts[i].clone()
        self._counts[i].add_(1)
        size = max(1, AT_ONCE // max(1, rows.shape[1]))
        for part in (slice(start, start + size) for start in range(0, len(rows), size)):
            moments = [moment.read(part).to(master.dtype) for moment in pair if isinstance(moment, Moment8bit)]
            self._update([rows[part]], [gradients[part]], [[x] for x in moments], [before.clone()], rate)
            for moment, x in zip(pair, moments, strict=True):
                assert isinstance(moment, Moment8bit), "both moments have 8 bits"
                moment.write(part, x.float())

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
        included; the masters of half-precision weights are.
        """
        state: dict[str, Tensor] = {}
        for i, (in_half, master) in enumerate(zip(self._in_half, self.masters, strict=True)):
            state[f"{i}.step"] = self._counts[i]
            for name, moment in zip(("exp_avg", "exp_avg_sq"), self._moments[i]):
                tensors = moment.tensors if isinstance(moment, Moment8bit) else {"": moment}
                state |= {f"{i}.{name}{end}": x for end, x in tensors.items()}
            if in_half:
                state[f"{i}.master"] = master
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors of `state()` back."""
        for name, tensor in self.state().items():
            tensor.copy_(self.ranks.shard(state[name], tensor))


def tensor_of(moment: Moment) -> Tensor:
    """A moment that is a tensor."""
    assert isinstance(moment, Tensor), "a moment in 8 bits is updated by rows"
    return moment


def gradient_of(master: Tensor) -> Tensor:
    """The accumulated gradient of a master weight that has one."""
    assert master.grad is not None, "only weights with a gradient are updated"
    return master.grad


def row_norms(gradient: Tensor) -> Tensor:
    """The norm of each row of a gradient, in float64. An entry of a vector is a row."""
    rows = gradient.flatten(1) if gradient.ndim > 1 else gradient.reshape(-1, 1)
    at_once = max(1, AT_ONCE // max(1, rows.shape[1]))
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in rows.split(at_once)])
