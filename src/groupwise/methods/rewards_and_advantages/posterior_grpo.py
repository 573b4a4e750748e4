"""Posterior-GRPO: reasoning is rewarded only in correct answers."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, NeededMeasure, Outcome, Shaping, Subscore
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import AddSubscore, Correctness

__all__ = ["AddSubscoreIfCorrect", "posterior_grpo"]


@dataclass(frozen=True, slots=True)
class AddSubscoreIfCorrect(Shaping):
    """Adds `weight` times a named score of the verdict, to correct answers only. P-GRPO, arXiv:2508.05170.

    A wrong answer cannot gain by a good score of the subscore, so the part cannot be hacked without the task.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], subscores={"style": [0.5, 1.0]})])
    >>> AddSubscoreIfCorrect("style")(batch.verdict_score, batch).tolist()
    [1.5, 0.0]
    """

    subscore: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        part = torch.where(b.outcome == Outcome.correct, b[Subscore(self.subscore)], 0.0)
        return reward + self.weight * part


def posterior_grpo(
    *,
    group_size: int = 8,
    subscore: str = "chain_true",
    format_subscore: str = "",
    gated: bool = True,
    low: float = 0.2,
    high: float = 0.28,
) -> Method:
    """A reward for the reasoning, given to correct answers alone, so that it cannot be hacked. Clip-higher, no KL.

    Outcome rewards ignore the reasoning, and a reward for the reasoning of every answer can be hacked: its score rises
    without more solved problems. Here only answers with a correct outcome get the reward for the reasoning.

    Args:
        group_size: answers per prompt.
        subscore: name of the subscore for the reasoning, Rt.
        format_subscore: name of the subscore for the format, Rf; empty: none.
        gated: whether only correct answers get the subscore; false is the paper's ablation.
        low: distance of the lower clip bound from 1.
        high: distance of the upper clip bound from 1.
    """
    reasoning = AddSubscoreIfCorrect(subscore) if gated else AddSubscore(subscore)
    form = (AddSubscore(format_subscore),) if format_subscore else ()
    return Method(
        group_size=group_size,
        shaping=(Correctness(), *form, reasoning),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper="Posterior-GRPO: Rewarding Reasoning Processes in Code Generation",
    arxiv="2508.05170",
    evidence="paper read",
    parent="dapo",
    formula="""\
R_i = Rf_i + Ro_i + Ro_i Rt_i: format, outcome, reasoning
A_i = (R_i - mean(R)) / std(R)
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 0.8, 1.28) A_i ]""",
    differences=(
        PaperDifference(
            "clip range, aggregate, KL",
            "not obtained",
            "not found; another implementation: 0.2 and 0.28, tokens, none",
            "0.2 and 0.28, tokens, none",
        ),
        PaperDifference(
            "reasoning score",
            "a reward model's sigmoid",
            "not found",
            "a subscore of the verdict; here chain_true of the calculator",
        ),
        PaperDifference("format reward", "1 for the tags", "not found", "format_subscore, if the verifier has one"),
        PaperDifference("ungated ablation", "R = Rf + Ro + Rt", "not found", "gated = false"),
        PaperDifference("group size", "not obtained", "not found", "8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[posterior_grpo]",
        "tests/golden/test_methods.py::test_whole_path[posterior_grpo, ungated]",
        "tests/golden/test_reward.py::test_posterior_table",
    ),
    expected_effect=ExpectedEffect(
        metric="outcome/correct",
        direction="up",
        task="wordy_sums",
        parent="posterior_grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=(
            *LARGE_GROUPS,
            'verifier = {kind = "HackableScore", verifier = "sum_steps"}',
            'method.shaping = ["Correctness", {kind = "AddSubscore", subscore = "quality"}]',
        ),
        own_settings=('method.shaping = ["Correctness", {kind = "AddSubscoreIfCorrect", subscore = "quality"}]',),
        acted="eval/accuracy_greedy",
        acted_least=0.05,
        acted_in="parent",
    ),
    toy_test="tests/golden/test_reward.py::test_a_wrong_answer_gains_nothing_by_its_part",
    our_finding="Without the gate a hackable reward leaves 14 % of the answers right, with the gate 22 %.",
)
