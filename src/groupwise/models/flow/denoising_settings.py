"""`DenoisingSettings`: how a flow policy turns noise into data, step by step."""

from dataclasses import dataclass

from groupwise.models.flow.denoising_noise import DenoisingNoise, FlowGrpoNoise

__all__ = ["MOST_STEPS", "DenoisingSettings"]

MOST_STEPS = 64
"""The most denoising steps: a step is a token, and the vocabulary of a flow model begins with this many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingSettings:
    """A flow policy's denoising: `steps` steps; those from `noise_start_step` to before `noise_end_step` get `noise`.

    Only steps with noise are actions and trained; the others are deterministic. Without `noise_end_step`, all but the
    last step get noise. Times fall from 1 to 0, evenly without a `time_shift`; a shift k above 1 moves them to k t / (1
    + (k
    - 1) t).

    >>> DenoisingSettings(steps=4).times, DenoisingSettings(steps=2, time_shift=3.0).times
    ((1.0, 0.75, 0.5, 0.25, 0.0), (1.0, 0.75, 0.0))
    """

    noise: DenoisingNoise = FlowGrpoNoise()  # noqa: RUF009
    steps: int = 10
    time_shift: float = 1.0
    noise_start_step: int = 0
    noise_end_step: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.steps <= MOST_STEPS or not self.time_shift > 0:
            raise ValueError(f"{self}\nneeds 2 <= steps <= {MOST_STEPS} and time_shift > 0")
        if not 0 <= self.noise_start_step < self.end < self.steps:
            raise ValueError(
                f"noise from step {self.noise_start_step} to before step {self.end}, of {self.steps} steps\n"
                "needs 0 <= noise_start_step < noise_end_step < steps: the last step has no noise, since nothing "
                "removes it again"
            )

    @property
    def end(self) -> int:
        """The number of the first step after those with noise."""
        return self.steps - 1 if self.noise_end_step is None else self.noise_end_step

    @property
    def times(self) -> tuple[float, ...]:
        """The time before each step, and 0 after the last one."""
        even = (1 - i / self.steps for i in range(self.steps + 1))
        return tuple(self.time_shift * t / (1 + (self.time_shift - 1) * t) for t in even)

    def has_noise(self, step: int) -> bool:
        """Whether a step is stochastic."""
        return self.noise.noise_level > 0 and self.noise_start_step <= step < self.end
