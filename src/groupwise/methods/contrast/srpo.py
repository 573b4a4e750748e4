"""SRPO: correct answers learn by GRPO, wrong ones by self-distillation."""

from groupwise.advantages import centred
from groupwise.learner import EMA
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Distillation, HasView, Objective, Routed, TeacherCertainty, token_mean
from groupwise.rollout import SiblingView

__all__ = ["srpo"]


def srpo(
    *,
    group_size: int = 8,
    alpha: float = 0.5,
    beta: float = 1.0,
    keep: float = 0.95,
    low: float = 0.2,
    high: float = 0.28,
    words: str = "auto",
) -> Method:
    """Correct answers learn by GRPO. Wrong ones are distilled from an EMA of the policy that sees a correct answer."""
    view = "sibling"
    surrogate = Routed(HasView(view), Distillation("teacher", alpha, view), Clip(low, high))
    return Method(
        group_size=group_size,
        strategy=SiblingView(view, words),
        advantage=(centred,),
        models=(("teacher", EMA(keep)),),
        objective=Objective(
            surrogate=surrogate, weights=(TeacherCertainty(beta, "teacher", view),), aggregate=token_mean
        ),
    )


REFERENCE = Reference(
    paper="Unifying Group-Relative and Self-Distillation Policy Optimization via Sample Routing",
    arxiv="2604.02288",
    label="paper read",
    parent="grpo",
    formula="""\
J = 1/N [ sum over tokens of correct answers of min(r A, clip(r) A) - sum over tokens of wrong ones of w JSD(pi, q) ]
q = the teacher's distribution after problem, a correct answer of the group, problem
w = exp(-beta H(q)) over its mean; A_i = R_i - mean(R); wrong answers without a correct sibling learn by GRPO""",
    differences=(
        Difference("advantage", "mean and std", "baseline without std", "without std"),
        Difference(
            "divergence", "generalised JSD, alpha 0.5", "SDPO: top 100 tokens and a rest", "whole distributions, 0.5"
        ),
        Difference("teacher", "EMA of the policy, 0.95", "SDPO: 0.95", "EMA(0.95)"),
        Difference(
            "prompt of the teacher",
            "question, solution, instruction",
            "SDPO: the same",
            "words; without prose by default",
        ),
        Difference("feedback of an environment", "optional", "SDPO: optional", "none"),
        Difference("sampled-token form", "none", "SDPO: an option", "not offered: it collapsed in our trial"),
        Difference("beta", "1", "none", "1"),
        Difference("group size", "8", "none", "8"),
        Difference("clip range", "0.2 and 0.28", "none", "0.2 and 0.28"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[srpo]",
        "tests/golden/test_contrast.py::test_certainty_weights",
        "tests/golden/test_contrast.py::test_siblings_become_views",
        "tests/golden/test_contrast.py::test_srpo_routes",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("method.objective.penalties = []",),
    ),
)
