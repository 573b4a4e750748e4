"""Side models: models besides the policy, such as a reference model, a teacher, or an average of the policy."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["EMA", "FromDirectory", "InitialPolicy", "SamplingPolicy", "SideModel"]


@runtime_checkable
class SideModel(Protocol):
    """A model besides the policy: a reference, a teacher, an EMA. The call after an optimizer step updates `weights`.

    `weights` and `policy` are the tensors of the side model and of the policy in one order and dtype, at least float32.
    `step` is the number of optimizer steps so far. With the class variable `updated_per_iteration = True` the call
    comes after the last step of each iteration instead. A component with `frozen = True` never changes and is not
    called; neither is a `ValueModel`, which has its own loss.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, weights: Sequence[Tensor], policy: Sequence[Tensor], step: int, /) -> None: ...


class _Frozen(SideModel):
    __slots__ = ()
    frozen: ClassVar[bool] = True

    def __call__(self, weights: Sequence[Tensor], policy: Sequence[Tensor], step: int) -> None: ...


@dataclass(frozen=True, slots=True)
class InitialPolicy(_Frozen):
    """The usual reference model: a frozen copy of the policy at the start of the run."""


@dataclass(frozen=True, slots=True)
class FromDirectory(_Frozen):
    """A frozen model that is read from a directory, such as a teacher. No checkpoint contains it.

    `directory` is a path, a packaged model or a name on the hub. The model needs the policy's vocabulary.
    """

    directory: str


@dataclass(frozen=True, slots=True)
class EMA(SideModel):
    """The exponential moving average of the policy: `decay * average + (1 - decay) * policy` after every `every` steps.

    It starts as the initial policy. `decay = 0` copies the policy; with a large `every` that is a lagged reference.

    >>> average, policy = [torch.zeros(2)], [torch.ones(2)]
    >>> EMA(decay=0.75)(average, policy, 1)
    >>> average
    [tensor([0.2500, 0.2500])]
    """

    decay: float = 0.995
    every: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.decay < 1 and self.every >= 1):
            raise ValueError(f"{self}\nneeds 0 <= decay < 1 and every >= 1; for a frozen copy, use InitialPolicy()")

    @torch.no_grad()
    def __call__(self, weights: Sequence[Tensor], policy: Sequence[Tensor], step: int) -> None:
        if step % self.every:
            return
        for average, current in zip(weights, policy, strict=True):
            average.lerp_(current, 1 - self.decay) if average.is_floating_point() else average.copy_(current)


@dataclass(frozen=True, slots=True)
class SamplingPolicy(SideModel):
    """The policy that generated the samples: a copy of the weights after the last optimizer step of each iteration.

    An `EMA` with `decay = 0` counts steps instead, and iterations differ in their number of steps if a filter drops
    prompts or a step is skipped. With `cluster.max_staleness` above 0, samples come from older weights than this copy.

    >>> copy, policy = [torch.zeros(2)], [torch.ones(2)]
    >>> SamplingPolicy()(copy, policy, 1)
    >>> copy
    [tensor([1., 1.])]
    """

    updated_per_iteration: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, weights: Sequence[Tensor], policy: Sequence[Tensor], step: int) -> None:
        for copy, current in zip(weights, policy, strict=True):
            copy.copy_(current)


class FollowingWeights:
    """The weights of a model that is updated from the policy, such as an `EMA`, in at least float32.

    Without these copies, an average would lose every update below the last bit of its weights. The policy's tensors
    are rounded to `dtypes`, in which it computes.
    """

    def __init__(
        self,
        part: SideModel,
        tensors: Mapping[str, Tensor],
        policy: Mapping[str, Tensor],
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        self.part, self._tensors = part, tensors
        self._policy = [(policy[name], dtypes[name]) for name in tensors]
        self.per_iteration: bool = getattr(part, "updated_per_iteration", False)
        self.exact = {name: x.float() if x.is_floating_point() and x.itemsize < 4 else x for name, x in tensors.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the tensors after an optimizer step or the last one of an iteration; `step` counts all steps."""
        weights = list(self.exact.values())
        self.part(weights, [p.to(dtype).to(x.dtype) for x, (p, dtype) in zip(weights, self._policy)], step)
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Copy the float32 values to the half-precision tensors."""
        for name, x in self._tensors.items():
            if self.exact[name] is not x:
                x.copy_(self.exact[name])
