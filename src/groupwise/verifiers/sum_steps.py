"""The verifiers of sums: `CalculatorAnswer` grades the result, `SumSteps` also each step of the answer."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.calculator import Calculator, calculator_answer
from groupwise.tasks.sums import Sums, steps_of

__all__ = ["CalculatorAnswer", "SumSteps"]
SUMS: tuple[type, ...] = (Calculator, Sums)


@verdicts_have("chain_true")
@dataclass(frozen=True, slots=True)
class CalculatorAnswer(VerifierSettings):
    """Right if the answer has exactly one `#` and ends in `#` and the result (`calculator_answer`)."""

    supported_tasks: ClassVar[tuple[type, ...]] = SUMS

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await calculator_answer(prompt, sample)


@verdicts_have("chain_true", "progress", "thought", feedback=True)
@dataclass(frozen=True, slots=True)
class SumSteps(VerifierSettings):
    """Right if the answer ends in `#` and the result, by the rule of `calculator_answer`. Each step is graded too.

    `steps["step"]` has a number for each step before the `#`: 1 if it is the solution's next step, else 0 (wrong, or a
    repetition). The first right step may be any of the solution, since an answer behind a hint continues it. Subscores:
    `chain_true` (the text before the `#` is the whole solution), `progress` (how far the right steps reach, from 0 to
    1), `thought` (1 if the answer has a step). `feedback` is the step that is due; empty after the last one.

    With a `step_price`, the score is 1 or 0 for the result, less the price of each step.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = SUMS
    step_price: float = 0.0

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        verdict = await calculator_answer(prompt, sample)
        solution = steps_of(prompt.text)
        numbers, reached = follow(sample.text.partition("#")[0], solution)
        return replace(
            verdict,
            score=(verdict.outcome is Outcome.correct) - self.step_price * len(numbers) if self.step_price else None,
            subscores={**verdict.subscores, "progress": reached / len(solution), "thought": float(bool(numbers))},
            step_scores={"step": numbers},
            feedback=solution[reached] if reached < len(solution) else "",
        )


def follow(text: str, solution: list[str]) -> tuple[list[tuple[int, float]], int]:
    """Each step's end in a text with 1.0 (right) or 0.0, and the number of steps of the solution that are reached.

    >>> follow("5+2=7;7*3=20;7*3=21;", ["5+2=7;", "7*3=21;"])
    ([(6, 1.0), (13, 0.0), (20, 1.0)], 2)
    """
    # A solution can repeat a step, so several positions are possible until later steps decide.
    positions, reached, end = set(range(len(solution))), 0, 0
    numbers = []
    for step in text.split(";")[:-1]:
        end += len(step) + 1
        after = {i + 1 for i in positions if i < len(solution) and solution[i] == f"{step};"}
        numbers.append((end, float(bool(after))))
        if after:
            positions, reached = after, min(after)
    return numbers, reached
