"""The verifier `BeadString`: strings of the task `beads`."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.beads import BEAD_COLOURS, STRING_LENGTH, Beads, has_pattern

__all__ = ["BeadString"]


@verdicts_have("pattern", "colours")
@dataclass(frozen=True, slots=True)
class BeadString(VerifierSettings):
    """Right if the string has the pattern and beads of both colours alone.

    A string of another length, or with other letters, is malformed. The subscores `pattern` and `colours` are 1 if that
    half of the problem is solved.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = (Beads,)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        pattern, *colours = prompt.row["answer"]
        beads = sample.text.strip()
        if len(beads) != STRING_LENGTH or not set(beads) <= {name[0] for name in BEAD_COLOURS}:
            return Verdict(Outcome.malformed, subscores={"pattern": 0.0, "colours": 0.0})
        has_colours = set(beads) == {colour[0] for colour in colours}
        parts = {"pattern": float(has_pattern(beads, pattern)), "colours": float(has_colours)}
        return Verdict(Outcome(int(all(parts.values()))), subscores=parts, answer=beads)
