"""RLOO: REINFORCE with a leave-one-out baseline."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Logp, NeededMeasure, Shaping
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, policy_gradient, sequence_sum
from groupwise.rewards import Score

__all__ = ["SequenceKLInReward", "leave_one_out", "rloo"]


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Advantage):
    """`x - mean(the others in the group)`; 0 for a single sample. RLOO, arXiv:2402.14740, equation 8."""

    name: ClassVar[str] = "leave_one_out"
    group_relative: ClassVar[bool] = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        size = b.groups.size(x)
        return b.groups.away(x) * b.groups.spread(size / (size - 1).clamp(min=1))


leave_one_out = LeaveOneOut()


@dataclass(frozen=True, slots=True)
class SequenceKLInReward(Shaping):
    """Subtracts `coefficient * sum over tokens of (log pi_old - log reference)`. RLOO, arXiv:2402.14740, section 2.

    k1 in the reward has the exact gradient, through the policy gradient. A coefficient of 0 needs no reference.
    """

    coefficient: float
    reference_model: str = "reference"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp("policy"), Logp(self.reference_model)}) if self.coefficient else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        if self.coefficient == 0:
            return reward
        gap = (b.logp_old - b[Logp(self.reference_model)]).to(reward.dtype)
        return reward - self.coefficient * b.sequences.total(gap)


def rloo(*, group_size: int = 4, kl: float = 0.03) -> Method:
    """The whole answer as one action, the mean of the others as baseline, KL in the reward. One step, no ratio.

    PPO's critic, clip and credit per token, the paper argues, suit policies that start from scratch, but a language
    model starts as a strong policy, with one reward per answer. RLOO needs none of the three: the answer is one action,
    and its baseline is the mean reward of the prompt's other answers.

    Args:
        group_size: answers per prompt, k, at least 2.
        kl: weight of the KL to the initial policy in the reward, beta, at least 0.
    """
    return Method(
        group_size=group_size,
        shaping=(Score(), SequenceKLInReward(kl)),
        advantage=(leave_one_out,),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=policy_gradient, aggregate=sequence_sum),
    )


REFERENCE = PaperReference(
    paper="Back to Basics: Revisiting REINFORCE-Style Optimization for Learning from Human Feedback in LLMs",
    arxiv="2402.14740",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    formula="""\
grad J = 1/k sum_i [ R(y_i, x) - 1/(k - 1) sum_(j != i) R(y_j, x) ] grad log pi(y_i | x)
R(y, x) = r(x, y) - beta log( pi(y | x) / pi_ref(y | x) )
log pi(y | x) = sum_t log pi(y_t | x, y_<t)""",
    differences=(
        PaperDifference("group size", "k = 2 and 4", "TRL's default 2", "4"),
        PaperDifference("KL coefficient", "0.03", "TRL 0.05, its reproduction 0.03", "0.03"),
        PaperDifference(
            "surrogate",
            "REINFORCE: A log pi(y | x)",
            "TRL: clipped ratio of whole sequences; verl: PPO's per token",
            "REINFORCE; the same gradient at pi = pi_old",
        ),
        PaperDifference(
            "updates per sampling",
            "2, without a ratio (through TRL's index)",
            "TRL: several, with the clip",
            "1, so that no ratio is needed",
        ),
        PaperDifference("length divisor", "none", "TRL none; verl the token mean", "none: sequence_sum"),
        PaperDifference("KL and the baseline", "KL before it", "OpenRLHF: after it, per token", "before it"),
        PaperDifference("group of one", "not defined", "verl: A = R", "refused"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[rloo]",
        "tests/golden/test_methods.py::test_worked_advantages[rloo]",
        "tests/golden/test_methods.py::test_rloo_gradient_ignores_length",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="mixed_sums",
        parent="reinforce",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("method.advantage = []",),
        own_settings=('method.advantage = ["leave_one_out"]',),
        plan="whole",
        first_seed=200,
    ),
    toy_test="tests/toys/test_gradient_moments.py::test_leave_one_out_keeps_the_mean_and_lowers_the_variance_below_4_of_7",
    our_finding=(
        "Exactly, for a policy of one logit, four answers and rewards of 0 and 1: the baseline lowers the variance of "
        "the gradient where fewer than 4 of 7 answers are right, and raises it above."
    ),
)
