"""`Denoise`: how a flow policy turns noise into data, step by step."""

from dataclasses import dataclass

from groupwise.models.flow.noise import FlowNoise, Noise

__all__ = ["MOST_STEPS", "Denoise"]

MOST_STEPS = 64
"""The most denoising steps: a step is a token, and the vocabulary of a flow model begins with this many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoise:
    """The denoising of a flow policy: `steps` steps, of which those from `first` to before `last` get `noise`.

    Only steps with noise are actions and trained; the others are deterministic. Without `last`, all but the last step
    get noise. Times fall from 1 to 0, evenly without a `shift`; a shift k above 1 moves them to k t / (1 + (k - 1) t).

    >>> Denoise(steps=4).times, Denoise(steps=2, shift=3.0).times
    ((1.0, 0.75, 0.5, 0.25, 0.0), (1.0, 0.75, 0.0))
    """

    noise: Noise = FlowNoise()  # noqa: RUF009
    steps: int = 10
    shift: float = 1.0
    first: int = 0
    last: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.steps <= MOST_STEPS or not self.shift > 0:
            raise ValueError(f"{self}\nneeds 2 <= steps <= {MOST_STEPS} and shift > 0")
        if not 0 <= self.first < self.end < self.steps:
            raise ValueError(
                f"noise from step {self.first} to before step {self.end}, of {self.steps} steps\n"
                "needs 0 <= first < last < steps: the last step has no noise, since nothing removes it again"
            )

    @property
    def end(self) -> int:
        """The number of the first step after those with noise."""
        return self.steps - 1 if self.last is None else self.last

    @property
    def times(self) -> tuple[float, ...]:
        """The time before each step, and 0 after the last one."""
        even = (1 - i / self.steps for i in range(self.steps + 1))
        return tuple(self.shift * t / (1 + (self.shift - 1) * t) for t in even)

    def has_noise(self, step: int) -> bool:
        """Whether a step is stochastic."""
        return self.noise.level > 0 and self.first <= step < self.end
