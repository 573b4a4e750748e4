"""The numbers of a step that add up over its microbatches: loss, auxiliary losses, counts of expert choices."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MicrobatchSums:
    """The numbers of one microbatch, or the sums over several, which `+` adds in the order of the microbatches.

    `loss_terms` are the addends of the loss in their order: it has the bits of one sum from left to right, whatever
    ranks computed them. `auxiliary_terms` are the auxiliary losses by metric, without their coefficients.
    `changed_route_count` of `route_count` expert choices differ from the old policy's.

    >>> a = MicrobatchSums(auxiliary_terms=(("balance", 1.0),), loss_terms=(0.5, 2.0), changed_route_count=1,
    route_count=4)
    >>> (a + a).loss, (a + a).auxiliary_losses, (a + a).route_count
    (5.0, {'balance': 2.0}, 8)
    """

    auxiliary_terms: tuple[tuple[str, float], ...] = ()
    loss_terms: tuple[float, ...] = ()
    changed_route_count: int = 0
    route_count: int = 0

    def __add__(self, other: "MicrobatchSums") -> "MicrobatchSums":
        return MicrobatchSums(
            auxiliary_terms=self.auxiliary_terms + other.auxiliary_terms,
            loss_terms=self.loss_terms + other.loss_terms,
            changed_route_count=self.changed_route_count + other.changed_route_count,
            route_count=self.route_count + other.route_count,
        )

    @property
    def loss(self) -> float:
        """The objective's loss, plus the auxiliary losses with their coefficients."""
        return sum(self.loss_terms, start=0.0)

    @property
    def auxiliary_losses(self) -> dict[str, float]:
        """The sum of each auxiliary loss, by its metric."""
        losses = dict.fromkeys((name for name, _ in self.auxiliary_terms), 0.0)
        for name, value in self.auxiliary_terms:
            losses[name] += value
        return losses

    @staticmethod
    def pack(auxiliary: Sequence[Tensor], terms: Sequence[Tensor], choices: tuple[int, int]) -> Float[Tensor, " k"]:
        """A microbatch's numbers as one float64 vector on their device: on a GPU, reading each would synchronise."""
        scalars = torch.stack([x.detach().double() for x in (*auxiliary, *terms)])
        return torch.cat([scalars, torch.tensor(choices, dtype=torch.float64, device=scalars.device)])

    @classmethod
    def unpack(cls, names: Sequence[str], packed: Float[Tensor, " k"]) -> "MicrobatchSums":
        """The numbers of a microbatch from `pack`; `names` are the metrics of its auxiliary losses."""
        *values, changed, choices = packed.tolist()
        auxiliary, terms = values[: len(names)], values[len(names) :]
        return cls(tuple(zip(names, auxiliary, strict=True)), tuple(terms), int(changed), int(choices))
