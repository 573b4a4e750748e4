"""REINFORCE++: a global baseline instead of a critic."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import WhitenedTokens
from groupwise.advantages.credit import discounted, token_rewards
from groupwise.data import Batch, Credit, Logp, NeededMeasure
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean

__all__ = ["ReturnsToGo", "reinforce_pp"]


@dataclass(frozen=True, slots=True)
class ReturnsToGo(Credit):
    """`A_t = sum over s >= t of gamma^(s - t) r_s`: the sample's reward at its last token, minus `kl k1` at each token.

    `k1 = log pi_old - log reference`. REINFORCE++, arXiv:2501.03262, equation 6. `kl_coefficient = 0` needs no
    reference.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], lengths=[3, 2])])
    >>> ReturnsToGo(gamma=0.5)(batch.verdict_score, batch).tolist()
    [0.25, 0.5, 1.0, 0.0, 0.0]
    """

    gamma: float = 1.0
    kl_coefficient: float = 0.0
    reference_model: str = "reference"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"ReturnsToGo(gamma={self.gamma}): needs 0 <= gamma <= 1")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp("policy"), Logp(self.reference_model)}) if self.kl_coefficient else frozenset()

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        return discounted(
            token_rewards(x, b, kl=self.kl_coefficient, model=self.reference_model), b.sequences.index, self.gamma
        )


def reinforce_pp(*, group_size: int = 1, clip: float = 0.2, kl: float = 0.01, minibatches: int = 8) -> Method:
    """One answer per prompt, returns with KL per token, whitened over all tokens of the iteration, and PPO's clip.

    PPO's critic costs memory and time, and normalisation over a few answers to one prompt, the paper argues, is biased.
    REINFORCE++ whitens over all tokens of the batch instead, so one answer per prompt is enough, and keeps PPO's clip
    and KL per token.

    Args:
        group_size: answers per prompt, at least 1.
        clip: distance of both clip bounds of the ratio from 1, eps.
        kl: weight of the KL per token in the reward, beta, at least 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        credit=WhitenedTokens(ReturnsToGo(kl_coefficient=kl), ddof=0),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models",
    arxiv="2501.03262",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    formula="""\
J = mean over tokens of min[ r_t A^_t, clip(r_t, 1 - eps, 1 + eps) A^_t ]
A_t = sum_(s >= t) r_s,  r_s = 1[s = T] R - beta log( pi_old(o_s) / pi_ref(o_s) )
A^_t = (A_t - mean over the batch's tokens) / std over the batch's tokens""",
    differences=(
        PaperDifference("group size", "1 and more", "OpenRLHF: any", "1"),
        PaperDifference("KL coefficient", "0.01, for reasoning 0.001 (recalled)", "OpenRLHF 0.01", "0.01"),
        PaperDifference("clip range", "0.2 (recalled)", "OpenRLHF 0.2", "0.2"),
        PaperDifference("minibatches", "8: 1024 by 128 (recalled)", "OpenRLHF: the same default", "8"),
        PaperDifference("std", "not specified", "OpenRLHF: ddof 0, floor 1e-8; verl: ddof 1", "ddof 0, plus 1e-8"),
        PaperDifference("rewards are clipped", "to a range, not given", "OpenRLHF: within -10 and 10", "no"),
        PaperDifference(
            "with group baseline (REINFORCE++-baseline)",
            "its variant",
            "OpenRLHF: k2 or k3 in the loss",
            'advantage = ["centred"]',
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[reinforce_pp]",
        "tests/golden/test_methods.py::test_reinforce_pp_worked_credit",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="reinforce",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=("prompts = 64", "method.group_size = 1", "method.minibatches = 1"),
        own_settings=("method.minibatches = 8",),
        plan="whole",
        first_seed=200,
    ),
    toy_test="tests/toys/test_gradient_moments.py::test_a_batch_keeps_the_direction_of_the_gradient_a_group_does_not",
)
