"""How gradients become new weights: AdamW, a schedule for its learning rate, and a bound on the gradient's norm."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """AdamW (arXiv:1711.05101). `clip` bounds the global norm of a step's gradient.

    The rate rises in a line over the first `warmup` optimizer steps, then stays (`constant`) or falls to 0 at the end
    of the run (`linear`, `cosine`).

    >>> a = AdamW(lr=1.0, warmup=2, decay="linear")
    >>> [a.rate(step, 6) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"

    def __post_init__(self) -> None:
        sound = self.clip > 0 and self.eps > 0 and self.warmup >= 0 and all(0 <= beta < 1 for beta in self.betas)
        if not (sound and 0 <= self.lr < math.inf and 0 <= self.weight_decay < math.inf):
            raise ValueError(f"{self}\nneeds lr, weight_decay and warmup >= 0, eps and clip > 0, 0 <= betas < 1")

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of optimizer step `step` (from 0) in a run of `steps`."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.decay == "constant":
            return self.lr
        gone = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.lr * (1 - gone if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * gone)))

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters, lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay, fused=True
        )
