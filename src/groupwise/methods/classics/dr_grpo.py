"""Dr. GRPO: GRPO done right."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import centred
from groupwise.data import Batch, Finish, Shaping
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, budget_mean
from groupwise.rewards import Score

__all__ = ["TruncatedAnswerReward", "dr_grpo"]


@dataclass(frozen=True, slots=True)
class TruncatedAnswerReward(Shaping):
    """Replaces the reward of a truncated answer (it reached the token limit) by `reward`. Dr. GRPO's code uses 0."""

    reward: float

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return torch.where(b.finish == Finish.length, self.reward, reward)


def dr_grpo(*, group_size: int = 8, clip: float = 0.2, minibatches: int = 8) -> Method:
    """GRPO without its two divisions: by the group's std, and by each answer's length. No KL.

    GRPO's two divisors bias the gradient: long wrong answers are punished less per token, and groups that are nearly
    solved or nearly failed weigh more. Both are removed, and the sum over an answer's tokens is divided by the token
    budget, a constant.

    Args:
        group_size: answers per prompt, G, at least 2.
        clip: distance of both clip bounds of the ratio from 1, eps.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        shaping=(Score(), TruncatedAnswerReward(0.0)),
        advantage=(centred,),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=budget_mean),
        minibatches=minibatches,
        shuffle="samples",
    )


REFERENCE = PaperReference(
    paper="Understanding R1-Zero-Like Training: A Critical Perspective",
    arxiv="2503.20783",
    evidence="code read",
    code="sail-sg/understand-r1-zero@dfca49dd460ee7cc8e4a5a162c876a7fd6993b87:train_zero_math.py",
    parent="grpo",
    formula="""\
J = 1/G sum_i sum_t min[ r_it A_i, clip(r_it, 1 - eps, 1 + eps) A_i ]
r_it = pi(o_it | q, o_i<t) / pi_old(o_it | q, o_i<t)
A_i = R_i - mean(R)""",
    differences=(
        PaperDifference(
            "length divisor",
            "none: a sum over tokens",
            "the budget generate_max_length",
            "the budget max_tokens, one number",
        ),
        PaperDifference(
            "answers cut by the budget",
            "not specified",
            "reward 0, in the group's mean",
            "reward 0, in the group's mean",
        ),
        PaperDifference("group size", "8", "8", "8"),
        PaperDifference("clip range", "eps", "0.2", "0.2"),
        PaperDifference("minibatches", "8 of 128 responses", "8 of 128 responses, shuffled", "8, shuffled by samples"),
        PaperDifference("KL", "none", "beta 0 (k3 with the same divisor if set)", "none"),
        PaperDifference(
            "engine correction",
            "none",
            "none in the pinned version; newer oat cuts at 2",
            "none; weights = TruncatedImportance",
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dr_grpo]",
        "tests/golden/test_methods.py::test_worked_numbers[dr_grpo]",
        "tests/golden/test_methods.py::test_worked_advantages[dr_grpo]",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length_wrong",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=1.0,
        runs_matched_by="iterations",
        settings=LARGE_GROUPS,
        kept="eval/accuracy",
        plan="whole",
    ),
)
