"""`OneStep`: answers that differ in the noise of a single denoising step, each completed with several step lengths."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Draw, Outcome, Role, Rollout, Sample, Sampler, Strategy, VerdictContents
from groupwise.rollout.stretches import steps_from, without_noise
from groupwise.rollout.together import together

__all__ = ["OneStep"]


@dataclass(frozen=True, slots=True)
class OneStep(Strategy):
    """For each step of `steps`, one group of `draw.n` answers with noise in this step alone. G2RPO.

    All begin with the steps of the anchor, a path without noise. Each is completed without noise once for each of
    `strides`, the number of steps that are taken at once; the step after the noise has length 1, and the last leads to
    time 0. An answer's verdict is that of the first stride, and its parts `scores` are the scores by stride. Neither
    the anchor, with the role `anchor`, nor the completions by other strides, with the role `completion`, are trained.
    A sample lacks the steps that it shares with another one. arXiv:2510.01982.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("anchor", "for each prompt"), Role("completion", "with several strides"))

    steps: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    strides: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        for name, numbers, least in (("steps", self.steps, 0), ("strides", self.strides, 1)):
            if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < least:
                raise ValueError(f"{name} is {numbers}\nuse one or several different numbers of at least {least}")

    @property
    def noisy_steps(self) -> tuple[int, ...]:
        """The steps that must have noise."""
        return self.steps

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of the verdict parts with an answer's score for each stride.

        >>> OneStep(strides=(1, 2)).scores
        ('stride_1', 'stride_2')
        """
        return tuple(f"stride_{stride}" for stride in self.strides)

    @property
    def contents(self) -> VerdictContents:
        """The parts that it adds to verdicts."""
        return VerdictContents(self.scores)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        (start,) = sampler.start(draw.prompt.context, role="anchor")
        (anchor,) = await sampler.verify([await sampler.extend(start, sampling=without_noise(sampler))])
        forks = [
            replace(anchor.fork(step, i), group=group, role="answer")
            for group, step in enumerate(self.steps)
            for i in range(draw.n)
        ]
        completed = await together(self._completed(fork, len(anchor.tokens), sampler) for fork in forks)
        return Rollout(draw, (anchor, *(sample for samples in completed for sample in samples)))

    async def _completed(self, fork: Sample, steps: int, sampler: Sampler) -> list[Sample]:
        """The answer with noise in the next step, and its completions by the other strides."""
        first = len(fork.tokens)
        noisy = await sampler.extend(fork, limit=1)
        others = [replace(noisy.fork(first + 1, i), role="completion") for i in range(len(self.strides) - 1)]
        pairs = zip((noisy, *others), self.strides, strict=True)
        answer, *others = await sampler.verify(await together(completed(s, g, steps, sampler) for s, g in pairs))
        verdicts = zip(self.scores, (sample.verdict for sample in (answer, *others)))
        scores = {name: v.value for name, v in verdicts if v and v.outcome is not Outcome.unverifiable}
        return [steps_from(answer.add_parts(scores), first), *(steps_from(s, first + 1) for s in others)]


async def completed(sample: Sample, stride: int, steps: int, sampler: Sampler) -> Sample:
    """A sample with all its steps: one of length 1 after the noise, if one of length `stride` can follow it."""
    if len(sample.tokens) + 1 + stride <= steps:
        sample = await sampler.extend(sample, limit=1, sampling=without_noise(sampler))
    return await sampler.extend(sample, sampling=without_noise(sampler), stride=stride)
