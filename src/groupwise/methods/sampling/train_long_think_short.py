"""Train long, think short: a length budget that shrinks over the run."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Shaping
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.methods.schedules import Staircase
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import AddSubscore, Correctness

__all__ = ["AddLengthBudgetScore", "train_long_think_short"]


@dataclass(frozen=True, slots=True)
class AddLengthBudgetScore(Shaping):
    """Adds `weight` times a length score: 1 at `budget_tokens`, less above, and below unless `flat_below_budget`.

    The score is 0 from `zero_score_answer_tokens` tokens on, by default twice the budget. "Train long, think short",
    arXiv:2508.08940; that the whole answer counts as thought is our reading.
    """

    budget_tokens: float = 256.0
    weight: float = 0.6
    zero_score_answer_tokens: float = 0.0
    flat_below_budget: bool = False

    def __post_init__(self) -> None:
        if self.budget_tokens <= 0 or 0 < self.zero_score_answer_tokens <= self.budget_tokens:
            raise ValueError(f"{self}: needs budget_tokens > 0, and zero_score_answer_tokens 0 or above budget_tokens")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        length, most = b.length.to(reward.dtype), self.zero_score_answer_tokens or 2 * self.budget_tokens
        rising = torch.ones_like(length) if self.flat_below_budget else length / self.budget_tokens
        falling = ((most - length) / (most - self.budget_tokens)).clamp(min=0)
        return reward + self.weight * torch.where(length <= self.budget_tokens, rising, falling)


def train_long_think_short(
    *,
    group_size: int = 8,
    budget_tokens: float = 256.0,
    factor: float = 0.7,
    iterations_per_stair: int = 100,
    correct: float = 0.3,
    length: float = 0.6,
    form: float = 0.1,
    form_subscore: str = "",
    flat: bool = False,
    kl: float = 0.04,
) -> Method:
    """GRPO with a reward for answers near a length budget that shrinks in steps.

    A fixed length budget can force short answers before the policy has learned to solve the problems. This method
    starts with a generous budget and shrinks it in steps, so that the policy explores first and compresses later. The
    whole answer as the counted length, the end of the length score and the interval of the steps are our reading.

    Args:
        group_size: answers per prompt.
        budget_tokens: length budget B at the start, in tokens, above 0.
        factor: factor of the budget at each reduction.
        iterations_per_stair: iterations between two reductions, T.
        correct: reward for a correct answer.
        length: weight of the length score.
        form: weight of `form_subscore`.
        form_subscore: subscore of the verdict for the form of an answer; empty leaves it out.
        flat: whether answers below the budget get the full length score.
        kl: weight of the KL penalty to the initial policy.
    """
    shaping = (Correctness(correct_reward=correct), AddLengthBudgetScore(budget_tokens, length, flat_below_budget=flat))
    return Method(
        group_size=group_size,
        shaping=(*shaping, AddSubscore(form_subscore, form)) if form_subscore else shaping,
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
        schedules=(("shaping.1.budget_tokens", Staircase(budget_tokens, factor, iterations_per_stair)),),
    )


REFERENCE = PaperReference(
    paper="Train Long, Think Short: Curriculum Learning for Efficient Reasoning",
    arxiv="2508.08940",
    evidence="our reading",
    parent="grpo",
    formula="""\
R = 0.3 correct + 0.6 score(L) + 0.1 form; score(L) = L / B up to the budget B, then falling to 0 at 2 B
B = max(1, 256 * 0.7^floor(t / T))""",
    differences=(
        PaperDifference(
            "weights of the parts",
            "0.3, 0.6, 0.1",
            "not found",
            "0.3, 0.6, no form; form_subscore, a subscore of the verdict, adds 0.1",
        ),
        PaperDifference("end of the fall", "not readable", "not found", "twice the budget (inferred)"),
        PaperDifference("flat reward", "ablation", "not found", "flat = true"),
        PaperDifference("length", "of the thought", "not found", "of the answer (inferred)"),
        PaperDifference("budget, factor", "256; 0.7", "not found", "256; 0.7"),
        PaperDifference("steps between drops", "not obtained", "not found", "100 (inferred)"),
        PaperDifference("KL, group size", "not obtained", "not found", "0.04 and 8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[train_long_think_short]",
        "tests/golden/test_methods.py::test_whole_path[train_long_think_short, budget 4]",
        "tests/golden/test_rollout.py::test_length_budget",
        "tests/golden/test_rollout.py::test_the_budget_shrinks",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=2.0,
        runs_matched_by="iterations",
        settings=LARGE_GROUPS,
        own_settings=(
            (
                'method.schedules = {"shaping.1.budget_tokens" = '
                '{kind = "Staircase", start_value = 36.0, factor = 0.7, iterations_per_stair = 4}}'
            ),
        ),
        kept="eval/accuracy",
    ),
)
