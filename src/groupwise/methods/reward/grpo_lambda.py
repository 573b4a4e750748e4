"""GRPO-lambda: a length penalty for correct answers, only in the groups with the best pass rates."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import BrevityWhenSolved, Correctness

__all__ = ["grpo_lambda"]


def grpo_lambda(*, group_size: int = 16, share: float = 0.2, alpha: float = 0.2, kl: float = 0.04) -> Method:
    """GRPO with less reward for long correct answers, in the groups with the best pass rates only."""
    return Method(
        group_size=group_size,
        shaping=(Correctness(), BrevityWhenSolved(share, alpha)),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
    )


REFERENCE = Reference(
    paper="Stable Reinforcement Learning for Efficient Reasoning",
    arxiv="2505.18086",
    label="our reading",
    parent="grpo",
    formula="""\
R_i = y_i (1 - alpha sigmoid((|o_i| - m) / s)) in the share lambda of groups with the best pass rates, else y_i
m, s over the lengths of the group's correct answers
A_i = (R_i - mean(R)) / std(R), GRPO's objective""",
    differences=(
        Difference("length penalty", "not obtained", "not found", "sigmoid (inferred)"),
        Difference("share lambda, alpha", "not obtained", "not found", "0.2 and 0.2 (inferred)"),
        Difference("ties of the pass rate", "not specified", "not found", "the group drawn first (inferred)"),
        Difference("KL", "as the baseline", "not found", "0.04, as GRPO"),
        Difference("group size", "not obtained", "not found", "16 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[grpo_lambda]",
        "tests/golden/test_reward.py::test_brevity_when_solved",
    ),
    effect=Effect(
        metric="completions/mean_length_correct",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        least=1.0,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16"),
    ),
)
