"""Reg-GRPO: group-normalised log-ratios are fitted to group-normalised rewards."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Objective, RatioRegression, group_mean
from groupwise.rollout import Cued, RecentRewards

__all__ = ["reg_grpo"]


def reg_grpo(*, group_size: int = 8, kl: float = 0.04, window: int = 50, cue: float = 0.5, epochs: int = 2) -> Method:
    """Fits a group's standardised log-ratios to its advantages. Hard prompts continue the start of a correct answer."""
    return Method(
        group_size=group_size,
        curriculum=RecentRewards(window),
        strategy=Cued(cue),
        advantage=(Standardised(ddof=0, eps=1e-4),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=RatioRegression(), penalties=(KL(kl),), aggregate=group_mean),
        epochs=epochs,
    )


REFERENCE = Reference(
    paper="DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO",
    arxiv="2506.07464",
    label="our reading",
    parent="grpo",
    formula="""\
L = 1/G sum_i (A_i - z(d)_i)^2 + beta KL,  d_i = sum_t log(pi / pi_old),  z = (d - mean(d)) / std(d) of the group
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        Difference("log-ratio", "of the sequence", "not available", "sum over tokens (inferred)"),
        Difference("sign of the KL", "printed with a minus", "not available", "a penalty (inferred)"),
        Difference(
            "std where all log-ratios are 0",
            "not specified",
            "not available",
            "variance floored at 1e-12, so its gradient is finite (inferred)",
        ),
        Difference(
            "answers without a token",
            "not specified",
            "not available",
            "counted in mean and std of d; they have no term (inferred)",
        ),
        Difference(
            "harder and easier inputs", "video frames and cues", "not available", "cues of correct answers alone"
        ),
        Difference(
            "length of a cue",
            "grows with the difficulty",
            "not available",
            "share of the gap to recent rewards (inferred)",
        ),
        Difference("KL, window, group size, epochs", "not obtained", "not available", "0.04, 50, 8, 2 (inferred)"),
        Difference("largest share of a cue", "not obtained", "not available", "0.5 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[reg_grpo]",
        "tests/golden/test_contrast.py::test_regression_example",
        "tests/golden/test_contrast.py::test_regression_does_not_see_scale",
        "tests/golden/test_contrast.py::test_cue_of_a_hard_prompt",
    ),
    effect=Effect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16"),
    ),
)
