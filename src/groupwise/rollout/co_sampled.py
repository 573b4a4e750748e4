"""`CoSampled`: each answer of a masked policy becomes two samples, its commits and the knobs of its schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import ClassVar

from groupwise.data import Draw, Role, Rollout, Sample, Sampler, Strategy
from groupwise.models.masked.actions import Knobs, decode_masked

__all__ = ["SCHEDULE", "CoSampled"]

SCHEDULE = "schedule"
"""The role of the samples with the knobs of an answer's steps."""


@dataclass(frozen=True, slots=True)
class CoSampled(Strategy):
    """`draw.n` answers of a masked policy, each split into two samples with one verdict. Co-GRPO, arXiv:2512.22288.

    The commits and the text stay in the answer. The knobs become a sample of the role `schedule`, so the knobs of a
    group are compared with each other, and get the advantages of their answers. A fixed schedule has no knobs.
    """

    whole_answers: ClassVar[bool] = True

    roles: ClassVar[tuple[Role, ...]] = (Role(SCHEDULE, "where the schedule of the masked policy has knobs"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await sampler.verify(await sampler.sample(draw.prompt.context, draw.n))
        knobs = [[is_knobs(sample, i) for i in range(len(sample.tokens))] for sample in answers]
        commits = [chosen(sample, [not knob for knob in row]) for sample, row in zip(answers, knobs)]
        schedules = [
            replace(chosen(sample, row), role=SCHEDULE, parent=i, stream=(*sample.stream, 0), text="", ends=())
            for i, (sample, row) in enumerate(zip(answers, knobs))
            if any(row)
        ]
        return Rollout(draw, (*commits, *schedules))


def is_knobs(sample: Sample, i: int) -> bool:
    """Whether a token of a sample is the knobs of a step."""
    return i < len(sample.path) and isinstance(decode_masked(sample.path[i]), Knobs)


def chosen(sample: Sample, which: Sequence[bool]) -> Sample:
    """The sample with these tokens alone. The others decode to no text."""
    per_token = {name: tuple(compress(getattr(sample, name), which)) for name in ("tokens", "origin", "logp", "ends")}
    return replace(sample, **per_token, path=tuple(compress(sample.path, which)), marks={}, likeliest=())
