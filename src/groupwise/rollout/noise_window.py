"""`NoiseWindow`: answers with noise in a few denoising steps alone, which are drawn for each prompt."""

from dataclasses import dataclass

from groupwise.data import Draw, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.stretches import without_noise
from groupwise.rollout.together import together

__all__ = ["NoiseWindow"]


@dataclass(frozen=True, slots=True)
class NoiseWindow(Strategy):
    """`draw.n` answers with noise in `width` consecutive steps, the same of a group. Flow-GRPO-Fast.

    The window begins at a step from `first` to before `last`, by a draw for each prompt. The other steps have no noise,
    so they are not trained. arXiv:2505.05470.
    """

    width: int = 2
    first: int = 0
    last: int = 5

    def __post_init__(self) -> None:
        if self.width < 1 or not 0 <= self.first < self.last:
            raise ValueError(f"{self}\nneeds width >= 1 and 0 <= first < last")

    @property
    def noisy_steps(self) -> tuple[int, ...]:
        """The steps that must have noise."""
        return tuple(range(self.first, self.last + self.width - 1))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        start = sampler.random(0).randrange(self.first, self.last)
        samples = sampler.start(draw.prompt.context, draw.n)
        answers = await together(self._denoised(sample, start, sampler) for sample in samples)
        return Rollout(draw, tuple(await sampler.verify(answers)))

    async def _denoised(self, sample: Sample, start: int, sampler: Sampler) -> Sample:
        sample = await sampler.extend(sample, limit=start, sampling=without_noise(sampler))
        sample = await sampler.extend(sample, limit=self.width)
        return await sampler.extend(sample, sampling=without_noise(sampler))
