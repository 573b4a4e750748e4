"""Trust-GRPO: a trusted and annealed thinking reward."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, NeededMeasure, Shaping, Subscore
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.methods.schedules import ExponentialDecay
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import Score

__all__ = ["AddTrustedSubscore", "trust_grpo"]


@dataclass(frozen=True, slots=True)
class AddTrustedSubscore(Shaping):
    """Adds `alpha * trust` times a subscore; trust is below 1 in groups where the part is higher for wrong answers.

    Trust is `exp(mean over right - mean over wrong)`, at most 1, and 1 without both kinds. An answer counts as right if
    its reward, before this part is added, is at least `min_correct_reward`. Trust-GRPO, arXiv:2505.17018.
    """

    subscore: str
    alpha: float = 0.3
    min_correct_reward: float = 0.5

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, subscore, right = b.groups, b[Subscore(self.subscore)], reward >= self.min_correct_reward
        n_right, n_wrong = g.total(right.double()), g.total((~right).double())
        mean_right = g.total(torch.where(right, subscore, 0.0)) / n_right.clamp(min=1)
        mean_wrong = g.total(torch.where(right, 0.0, subscore)) / n_wrong.clamp(min=1)
        trust = torch.where((n_right > 0) & (n_wrong > 0), (mean_right - mean_wrong).clamp(max=0).exp(), 1.0)
        return reward + self.alpha * g.spread(trust) * subscore


def trust_grpo(
    *, group_size: int = 8, subscore: str = "chain_true", alpha: float = 0.3, over: float = 1500.0, kl: float = 0.04
) -> Method:
    """GRPO with a reward for the thinking, trusted less where wrong answers score better, and annealed.

    Outcome rewards ignore the thinking, and a learned reward for it can be hacked or be wrong on some prompts. Here
    that reward counts less for prompts where wrong answers get more of it, and it decays over the run.

    Args:
        group_size: answers per prompt.
        subscore: name of the subscore for the thinking, Rt.
        alpha: weight of the thinking reward in the first iteration, alpha.
        over: iterations after which the weight has fallen to 1/e of alpha, T.
        kl: coefficient of the KL penalty to the initial policy.
    """
    return Method(
        group_size=group_size,
        shaping=(Score(), AddTrustedSubscore(subscore, alpha)),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
        schedules=(("shaping.1.alpha", ExponentialDecay(alpha, over)),),
    )


REFERENCE = PaperReference(
    paper="SophiaVL-R1: Reinforcing MLLMs Reasoning with Thinking Reward",
    arxiv="2505.17018",
    evidence="code read",
    code="kxfan2002/SophiaVL-R1@a8184947bf3ba215c511225a739789bdfce44930:verl/workers/reward/custom.py",
    parent="grpo",
    formula="""\
R_i = Ro_i + gamma alpha exp(-s / T) Rt_i at step s, Ro the outcome, Rt the thinking reward
gamma = min(1, exp(mean of Rt over right - mean of Rt over wrong)), right where Ro >= 1/2
A_i = (R_i - mean(R)) / std(R), GRPO's objective""",
    differences=(
        PaperDifference(
            "thinking reward", "of every answer", "only where Ro >= 0.2; none where outcomes agree", "of every answer"
        ),
        PaperDifference(
            "groups without both kinds", "not specified", "no right answer: no discount", "trust 1 (inferred)"
        ),
        PaperDifference("T", "1500 steps", "12000", "1500 iterations"),
        PaperDifference("alpha, KL", "0.3; 0.04", "0.3; 0.04", "0.3; 0.04"),
        PaperDifference(
            "thinking part",
            "a reward model",
            "a reward model",
            "a subscore of the verdict; here chain_true of the calculator",
        ),
        PaperDifference("group size", "8", "8", "8"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[trust_grpo]",
        "tests/golden/test_reward.py::test_trust_table",
    ),
    expected_effect=ExpectedEffect(
        metric="outcome/correct",
        direction="up",
        task="wordy_sums",
        parent="trust_grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=(
            *LARGE_GROUPS,
            'verifier = {kind = "HackableScore", verifier = "sum_steps"}',
            "method.schedules = {}",
            'method.shaping = ["Correctness", {kind = "AddSubscore", subscore = "quality", weight = 0.3}]',
        ),
        own_settings=(
            'method.shaping = ["Correctness", {kind = "AddTrustedSubscore", subscore = "quality", alpha = 0.3}]',
        ),
        acted="eval/accuracy_greedy",
        acted_least=0.05,
        acted_in="parent",
    ),
)
