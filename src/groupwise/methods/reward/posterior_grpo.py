"""Posterior-GRPO: reasoning is rewarded only in correct answers."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import AddPart, AddPartIfCorrect, Correctness

__all__ = ["posterior_grpo"]


def posterior_grpo(
    *,
    group_size: int = 8,
    part: str = "chain_true",
    format_part: str = "",
    gated: bool = True,
    low: float = 0.2,
    high: float = 0.28,
) -> Method:
    """A reward for the reasoning, given to correct answers alone, so that it cannot be hacked. Clip-higher, no KL."""
    reasoning = AddPartIfCorrect(part) if gated else AddPart(part)
    form = (AddPart(format_part),) if format_part else ()
    return Method(
        group_size=group_size,
        shaping=(Correctness(), *form, reasoning),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
    )


REFERENCE = Reference(
    paper="Posterior-GRPO: Rewarding Reasoning Processes in Code Generation",
    arxiv="2508.05170",
    label="paper read",
    parent="dapo",
    formula="""\
R_i = Rf_i + Ro_i + Ro_i Rt_i: format, outcome, reasoning
A_i = (R_i - mean(R)) / std(R)
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 0.8, 1.28) A_i ]""",
    differences=(
        Difference(
            "clip range, aggregate, KL",
            "not obtained",
            "not found; another implementation: 0.2 and 0.28, tokens, none",
            "0.2 and 0.28, tokens, none",
        ),
        Difference(
            "reasoning score",
            "a reward model's sigmoid",
            "not found",
            "a part of the verdict; here chain_true of the calculator",
        ),
        Difference("format reward", "1 for the tags", "not found", "format_part, if the verifier has one"),
        Difference("ungated ablation", "R = Rf + Ro + Rt", "not found", "gated = false"),
        Difference("group size", "not obtained", "not found", "8 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[posterior_grpo]",
        "tests/golden/test_methods.py::test_whole_path[posterior_grpo, ungated]",
        "tests/golden/test_reward.py::test_posterior_table",
    ),
    effect=Effect(
        metric="outcome/correct",
        direction="up",
        task="wordy_sums",
        parent="posterior_grpo",
        least=0.05,
        matched="steps",
        settings=(
            "iterations = 10",
            "evaluate.problems = 16",
            'verifier = {kind = "Hackable", verifier = "sum_steps"}',
            'method.shaping = ["Correctness", {kind = "AddPart", part = "quality"}]',
        ),
        own_settings=('method.shaping = ["Correctness", {kind = "AddPartIfCorrect", part = "quality"}]',),
    ),
    toy="tests/golden/test_reward.py::test_a_wrong_answer_gains_nothing_by_its_part",
    finding="Without the gate a hackable reward leaves 14 % of the answers right, with the gate 22 %.",
)
