"""GDPO: Group reward-Decoupled Normalization Policy Optimization."""

from groupwise.advantages import EachStandardised, Whitened
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, token_mean

__all__ = ["gdpo"]


def gdpo(
    *, group_size: int = 4, subscores: tuple[tuple[str, float], ...] = (("chain_true", 1.0),), minibatches: int = 4
) -> Method:
    """Standardises each of several rewards by itself in the group, adds them, and whitens the sum over the batch.

    GRPO standardises the sum of several rewards, so different combinations of rewards can get the same advantage. Here
    each reward has its own z-score, and whitening keeps the scale independent of the number of rewards.

    Args:
        group_size: answers per prompt.
        subscores: pairs of a subscore's name and the weight of its z-score, w_n; the reward itself weighs 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(EachStandardised(subscores), Whitened(ddof=1, eps=1e-4)),
        objective=Objective(aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper=("GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization"),
    arxiv="2601.05242",
    evidence="code read",
    code="NVlabs/GDPO@b080e63d0126870ad08acc8ebc3f04b728175a9e:verl-GDPO/verl/trainer/ppo/ray_trainer.py",
    parent="grpo",
    formula="""\
A_i = (S_i - mean(S)) / std(S) over the batch
S_i = sum_n w_n (r_n,i - mean(r_n)) / std(r_n) over the group
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 1 - eps, 1 + eps) A_i ]""",
    differences=(
        PaperDifference(
            "rewards",
            "several",
            "several functions",
            "the reward and subscores of the verdict; here chain_true of the calculator",
        ),
        PaperDifference(
            "whitening of the sum",
            "over the batch",
            "TRL: over sequences; verl: over tokens",
            "over sequences; WhitenedTokens for tokens",
        ),
        PaperDifference("added to the std of a group", "not specified", "verl 1e-6, TRL 1e-4", "1e-6"),
        PaperDifference(
            "missing reward",
            "not specified",
            "TRL: 0 before the statistics; now left out",
            "left out of the statistics, 0",
        ),
        PaperDifference("conditioned rewards", "ablation", "not released", "AddSubscoreIfCorrect"),
        PaperDifference("clip range, group size, minibatches", "0.2; 4; 4", "verl branch: 0.2, 4, 4", "0.2, 4, 4"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[gdpo]",
        "tests/golden/test_reward.py::test_gdpo_batch",
        "tests/golden/test_reward.py::test_gdpo_toy_pairs",
    ),
    expected_effect=ExpectedEffect(
        metric="subscores/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=(
            "iterations = 10",
            "method.objective.penalties = []",
            'method.shaping = ["Score", {kind = "AddSubscore", subscore = "chain_true"}]',
        ),
        own_settings=('method.shaping = ["Score"]',),
    ),
    toy_test="tests/golden/test_reward.py::test_gdpo_toy_pairs",
)
