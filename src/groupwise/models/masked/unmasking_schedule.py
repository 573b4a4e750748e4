"""`UnmaskingSettings`: how a masked policy reveals its canvas, and the schedule that chooses the knobs of each step."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["MOST_UNMASKING_STEPS", "UnmaskingSchedulePolicy", "UnmaskingSettings"]

MOST_UNMASKING_STEPS = 64
"""The most steps: the vocabulary of a masked model begins with a token for the knobs of each."""
KNOBS = 2
"""The knobs of a step: the log of the temperature, and the logit of the share that is masked after the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskingSettings:
    """Settings of unmasking: the largest number of steps, the start temperature, and the std of the schedule's knobs.

    A step draws all masked cells at its temperature. Then a share of all cells is masked, those that were drawn with
    the least probability, also of earlier steps; the last step masks none. At the start the share falls evenly, and the
    temperature holds for all steps. The schedule draws its knobs from Gaussians with the standard deviation `knob_std`,
    which training may lower to `min_knob_std`. With a spread of 0 the schedule is fixed, and no knob is an action. The
    numbers of the schedule learn `schedule_lr_factor` times as fast as weights.

    >>> UnmaskingSettings(steps=4).shares
    (0.75, 0.5, 0.25, 0.0)
    """

    steps: int = 4
    temperature: float = 1.0
    knob_std: float = 0.0
    min_knob_std: float = 0.05
    schedule_lr_factor: float = 20.0

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MOST_UNMASKING_STEPS:
            raise ValueError(f"{self}\nneeds 1 <= steps <= {MOST_UNMASKING_STEPS}")
        if not (
            0 < self.temperature < math.inf
            and 0 <= self.knob_std < math.inf
            and 0 <= self.schedule_lr_factor < math.inf
        ):
            raise ValueError(f"{self}\nneeds temperature > 0, knob_std >= 0 and schedule_lr_factor >= 0")
        if not 0 < self.min_knob_std < math.inf or 0 < self.knob_std < self.min_knob_std:
            raise ValueError(
                f"{self}\nneeds a min_knob_std above 0, and at most the knob_std, unless the knob_std is 0"
            )

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of masked cells after each step, before training."""
        return tuple(1 - (step + 1) / self.steps for step in range(self.steps))

    def continues(self, stored: "UnmaskingSettings") -> bool:
        """Whether a schedule that was trained with the `stored` settings is kept: its start equals these settings'.

        `schedule_lr_factor` and `min_knob_std` may differ: they are settings of training.
        """
        start = (self.steps, self.temperature, self.knob_std) == (stored.steps, stored.temperature, stored.knob_std)
        return start and (self.schedule_lr_factor > 0 or stored.schedule_lr_factor == 0)

    @property
    def is_fixed(self) -> bool:
        """Whether the schedule is no policy: its knobs have no noise."""
        return self.knob_std == 0

    @property
    def starts(self) -> list[list[float]]:
        """The mean knobs of each step before training. The last step masks no cell, whatever its second knob is."""
        logits = [math.log(share / (1 - share)) for share in self.shares[:-1]]
        return [[math.log(self.temperature), logit] for logit in (*logits, 0.0)]


class UnmaskingSchedulePolicy(nn.Module):
    """The schedule policy: independent Gaussians over the knobs of each step, with learned means and deviations."""

    start_knobs: Tensor

    def __init__(self, unmask: UnmaskingSettings) -> None:
        super().__init__()
        self.unmask = unmask
        self.mean_change = nn.Parameter(torch.zeros(unmask.steps, KNOBS))
        self.log_std_change = nn.Parameter(torch.zeros(unmask.steps, KNOBS))
        self.register_buffer("start_knobs", torch.tensor(unmask.starts), persistent=False)

    @property
    def mean(self) -> Float[Tensor, "steps k"]:
        return self.start_knobs.to(self.mean_change) + self.unmask.schedule_lr_factor * self.mean_change

    @property
    def std(self) -> Float[Tensor, "steps k"]:
        """The standard deviations, at least `floor`; 0 if the schedule is fixed."""
        unmask = self.unmask
        if unmask.is_fixed:
            return torch.zeros_like(self.log_std_change)
        return (
            (math.log(unmask.knob_std) + unmask.schedule_lr_factor * self.log_std_change)
            .exp()
            .clamp(min=unmask.min_knob_std)
        )

    def log_density(self, step: Int[Tensor, " n"], values: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
        """The log-density of the knobs of steps: the sum over the knobs."""
        std = self.std[step]
        z = (values.to(std) - self.mean[step]) / std
        return (-z.square() / 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, step: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The differential entropy of the knobs of steps."""
        return (self.std[step].log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def temperatures(values: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The temperatures of steps with these knobs."""
    return values[:, 0].exp()


def masked_counts(values: Float[Tensor, "n k"], last: Tensor, cells: int) -> Int[Tensor, " n"]:
    """The numbers of cells that are masked after steps with these knobs: none after a `last` one."""
    counts = (values[:, 1].sigmoid() * cells).round().long()
    return counts.masked_fill(last, 0)
