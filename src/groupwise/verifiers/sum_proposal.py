"""The verifier `SumWithProposal`: a sum's answer that ends in a new problem."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.tasks.proposed_sums import proposed_problem
from groupwise.verifiers.sum_steps import SUMS, SumSteps

__all__ = ["SumWithProposal"]


@verdicts_have("chain_true", "progress", "thought", "proposed", feedback=True)
@dataclass(frozen=True, slots=True)
class SumWithProposal(VerifierSettings):
    """Grades a sum's answer as `SumSteps` does, up to the first `;` behind its `#`; the rest is a proposed new sum.

    The subscore `proposed` is 1 if a run may train on the new problem (`proposed_problem`), else 0.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = SUMS

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        steps, mark, rest = sample.text.partition("#")
        verdict = await SumSteps()(prompt, replace(sample, text=f"{steps}{mark}{rest.partition(';')[0]}"))
        return replace(verdict, subscores={**verdict.subscores, "proposed": float(bool(proposed_problem(sample.text)))})
