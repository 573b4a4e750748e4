"""Pref-GRPO: the reward of a picture is the share of its group that it beats in pairs."""

from groupwise.advantages import Bounded, EachStandardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.models import Denoise, FlowNoise
from groupwise.objective import CentredStepRatio, Clip, Objective, PerStepLength, token_mean
from groupwise.rewards import PartReward
from groupwise.rollout import PairwiseWins

__all__ = ["pref_grpo"]


def pref_grpo(
    *,
    group_size: int = 8,
    steps: int = 25,
    noise: float = 0.7,
    clip: float = 1e-4,
    wins: float = 1.0,
    parts: tuple[tuple[str, float], ...] = (),
) -> Method:
    """GRPO-Guard with win rates as reward. `parts` are further scores of the verdict, with their weights."""
    return Method(
        group_size=group_size,
        denoise=Denoise(noise=FlowNoise(noise), steps=steps),
        strategy=PairwiseWins(),
        shaping=(PartReward("wins"),),
        advantage=(EachStandardised(parts, reward=wins, ddof=1, eps=1e-8), Bounded(5.0)),
        objective=Objective(
            surrogate=Clip(clip, clip, ratio=CentredStepRatio()), weights=(PerStepLength(),), aggregate=token_mean
        ),
        minibatches=2,
    )


REFERENCE = Reference(
    paper="Pref-GRPO: Pairwise Preference Reward-based GRPO for Stable Text-to-Image Reinforcement Learning",
    arxiv="2508.20751",
    label="code read",
    code="CodeGoat24/Pref-GRPO@3e787f6dd5a3051b40d61f07e9578468ac26130a:fastvideo/rewards/unifiedreward_think.py",
    parent="grpo_guard",
    formula="""\
R_i = (wins_i + ties_i / 2) / (G - 1), of G (G - 1) / 2 judged pairs
A_i = sum_k lambda_k (R_i^k - mean(R^k)) / std(R^k) over the group, within +-5
L = mean over samples and steps of max[ -A rho, -A clip(rho, 1 - c, 1 + c) ] / |dt|, rho as in GRPO-Guard""",
    differences=(
        Difference("group size, steps", "not read", "8, 25", "8, 25"),
        Difference("noise level, clip range", "not read", "0.7, 1e-4", "0.7, 1e-4"),
        Difference(
            "weights of the rewards",
            "win rate alone (*inferred*)",
            "0.4 win rate, 0.6 CLIP score",
            "1 of the win rate, no others",
        ),
        Difference(
            "judge", "UnifiedReward-Think 7B", "the same", "the score of the verifier; a `PairJudge` of your file"
        ),
        Difference("a failed call of the judge", "not read", "a tie", "a tie, counted in the part `unjudged`"),
        Difference("std of the sum over the batch", "not read", "an option", "`Whitened` after the others"),
        Difference("trained steps", "not read", "0.6 of them, without the last", "all but the last"),
        Difference("first noise", "not read", "equal in a group", "of each sample"),
    ),
    proofs=(
        "tests/golden/test_flow_pref_grpo.py::test_worked_wins_and_advantages",
        "tests/golden/test_flow_pref_grpo.py::test_whole_path",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="rings",
        parent="grpo_guard",
        least=0.1,
        matched="steps",
        settings=(
            "method.denoise.steps = 10",
            'method.filter = "everything"',
            "method.objective.surrogate.low = 2e-6",
            "method.objective.surrogate.high = 2e-6",
            'method.shaping = [{kind = "PartReward", part = "alignment"}]',
        ),
        own_settings=(
            'method.shaping = [{kind = "PartReward", part = "wins"}]',
            'method.strategy.judge = {kind = "HigherScore", part = "alignment", margin = 0.5}',
        ),
    ),
    toy="tests/golden/test_flow_pref_grpo.py::test_small_differences_are_ties_for_a_judge_with_a_margin",
    finding="Both runs are rewarded by a coordinate of the point, which grows with the distance from the centre: once "
    "as a score, once by pairs. Pairs only delay the hack: in an ablation with 40 iterations, added after the runs of "
    "the effect, greedy accuracy ends far below that of the start with both rewards.",
)
