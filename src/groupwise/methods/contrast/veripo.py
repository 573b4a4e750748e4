"""VerIPO: phases of GRPO, and between them preferences among verified answers."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, Preference, group_mean, pair_mean
from groupwise.rewards import AddPart, Correctness, PassesChecks

__all__ = ["veripo"]


def veripo(
    *,
    phase: Literal["align", "search"] = "align",
    group_size: int = 8,
    consistent: str = "chain_true",
    form: str = "",
    beta: float = 0.1,
    minibatches: int = 1,
) -> Method:
    """DPO on pairs of sampled answers: those that pass all checks are preferred. `phase = "search"` is GRPO."""
    if phase == "search":
        shaping = (Correctness(), AddPart(form, 0.5)) if form else (Correctness(),)
        objective = Objective(surrogate=Clip(0.2, 0.2), aggregate=group_mean)
        return Method(group_size=group_size, shaping=shaping, advantage=(Standardised(),), objective=objective)
    return Method(
        group_size=group_size,
        shaping=(PassesChecks(consistent),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Preference(beta), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Gudied Iterative Policy Optimization",
    arxiv="2505.19000",
    label="our reading",
    kind="recipe",
    parent="grpo",
    formula="""\
search: GRPO on r = [correct] + 0.5 [format]
align: J = mean over pairs of log sigmoid(beta (d_+ - d_-)),  d = sum_t log(pi / pi_ref), pi_ref at the phase's start
+ passes the checks (correct, consistent, complete, not repetitive); - does not, or is shorter
recipe: search, align, search, ...""",
    differences=(
        Difference("phases", "activation, search, align, search", "not released", "recipes/veripo.toml"),
        Difference("rollouts of the pairs", "logged in the search", "not released", "sampled at the phase's start"),
        Difference("consistency", "a small language model reads the reasoning", "not released", "a verdict part"),
        Difference("repetition", "rejected; rule not obtained", "not released", "0.5 of 4-grams (inferred)"),
        Difference("length", "preferred; rule not obtained", "not released", "longer of two that pass (inferred)"),
        Difference("reflective pairs", "a corrected first attempt over it", "not released", "left out"),
        Difference("solved prompts", "80 % are dropped between loops", "not released", "left out"),
        Difference("numeric answers", "mean relative accuracy", "the same in the evaluation", "the task's verifier"),
        Difference("beta, group size", "0.1 and 8", "0.1 and 8 (README)", "0.1 and 8"),
        Difference("minibatches", "batches of 32 pairs", "not released", "1; 8 in the recipe"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[veripo]",
        "tests/golden/test_methods.py::test_whole_path[veripo, search]",
        "tests/golden/test_contrast.py::test_dpo_is_a_preference",
        "tests/golden/test_contrast.py::test_checks_of_answers",
        "tests/golden/test_contrast.py::test_preference_at_the_reference",
    ),
    effect=Effect(
        metric="eval/parts_of_correct/chain_true",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
    ),
)
