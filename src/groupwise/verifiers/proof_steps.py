"""The verifier `ProofSteps`: each step of a proof in the task `deduction`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.deduction import Deduction, DeductionProblem

__all__ = ["ProofSteps"]


@verdicts_have("valid", "leading", "reached", feedback=True)
@dataclass(frozen=True, slots=True)
class ProofSteps(VerifierSettings):
    """Right if every step is valid and one concludes the goal. An answer has a `;` behind each step and ends in `#`.

    A step is valid if it is a rule of the problem whose premises are facts or conclusions of earlier valid steps.
    `steps["step"]` has 1 for each valid step and 0 for each other one. Subscores: `valid` (their mean), `leading` (the
    share of steps before the first invalid one), `reached` (1 if a valid step concludes the goal). `feedback` is the
    first invalid step. An answer without a step or without exactly one `#`, at its end, is malformed.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = (Deduction,)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        scene = scene_of(prompt)
        body, mark, rest = sample.text.partition("#")
        *steps, unfinished = body.split(";")
        valid = scene.check(steps)
        ends, end = [], 0
        for step in steps:
            end += len(step) + 1
            ends.append(end)
        reached = any(ok and step[-1] == scene.goal for step, ok in zip(steps, valid))
        outcome = Outcome(int(all(valid) and reached))
        leading = next((i for i, ok in enumerate(valid) if not ok), len(valid))
        count = max(len(valid), 1)
        return Verdict(
            Outcome.malformed if unfinished or not mark or rest or not steps else outcome,
            subscores={"valid": sum(valid) / count, "leading": leading / count, "reached": float(reached)},
            step_scores={"step": [(end, float(ok)) for end, ok in zip(ends, valid)]},
            feedback=next((step for step, ok in zip(steps, valid) if not ok), ""),
        )


def scene_of(prompt: Prompt) -> DeductionProblem:
    """The deduction problem in a prompt's row."""
    row: Any = prompt.row
    return DeductionProblem(row["facts"], tuple(row["rules"]), row["answer"])
