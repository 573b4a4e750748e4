"""TRPA: Trust Region Preference Approximation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Outcome, Shaping, Subscore
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, AggregateReplacingWeight, Objective, PairwisePreference, pair_mean, token_mean

__all__ = ["RewardLevels", "trpa"]


@dataclass(frozen=True, slots=True)
class RewardLevels(Shaping):
    """Creates the reward: -1 for a correct answer, -3 for a malformed (unreadable) one, -2 for any other.

    If `format_subscore` names a subscore of the verdict, answers in which it is 0 get -4. Only the order of the levels
    matters. TRPA, arXiv:2504.04524.
    """

    format_subscore: str = ""

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.format_subscore)}) if self.format_subscore else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        level = torch.full_like(b.verdict_score, -2.0)
        level = level.masked_fill(b.outcome == Outcome.malformed, -3.0).masked_fill(b.outcome == Outcome.correct, -1.0)
        if not self.format_subscore:
            return level
        formless = b.has(Subscore(self.format_subscore)) & (b[Subscore(self.format_subscore)] == 0)
        return level.masked_fill(formless, -4.0)


def trpa(
    *,
    group_size: int = 16,
    beta: float = 0.1,
    kappa: float = 2.5,
    trust: float = 1e-3,
    form: str = "",
    minibatches: int = 1,
) -> Method:
    """Answers of a group are ranked in levels; pairs of different levels are preferences. A KL to the old policy.

    Rewards can be hacked, and in online DPO the probabilities of the better and the worse answer often move together.
    Here rules rank the answers, pairs of different rank are trained as preferences, and a KL penalty limits the step.

    Args:
        group_size: answers per prompt.
        beta: factor of the difference of log-ratios, beta.
        kappa: factor of beta in pairs whose better answer is correct, k_i.
        trust: coefficient of the KL penalty to the policy before the update, lambda.
        form: name of the subscore that is 0 for an answer without the required form; empty: no such level.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        shaping=(RewardLevels(form),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(
            surrogate=PairwisePreference(beta, kappa, best_reward=-1.0, token_reduction="mean"),
            weights=(AggregateReplacingWeight(pair_mean),),
            penalties=(KL(trust, model="policy"),),
            aggregate=token_mean,
        ),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper=(
        "Trust Region Preference Approximation: A simple and stable reinforcement learning algorithm for LLM reasoning"
    ),
    arxiv="2504.04524",
    evidence="code read",
    code=(
        "XueruiSu/Trust-Region-Preference-Approximation@f372585ed6ec230aa354feb9c8e24e970b615846:"
        "verl/trainer/ppo/core_algos.py"
    ),
    parent="grpo",
    formula="""\
J = mean over pairs (i better than j) of log sigmoid(k_i beta (d_i - d_j)) - lambda mean over tokens of k3(pi_old, pi)
d_i = 1/|o_i| sum_t log(pi / pi_ref); k_i = 2.5 for a correct i, else 1
levels: correct > wrong > unreadable > without form""",
    differences=(
        PaperDifference("beta, kappa, lambda", "0.1; not obtained; not obtained", "0.1, 2.5, 0.001", "0.1, 2.5, 0.001"),
        PaperDifference("pairs", "of a group", "of a microbatch", "of a group"),
        PaperDifference("step without a pair", "not specified", "a fallback with single answers", "no gain"),
        PaperDifference("group size", "16", "16", "16"),
        PaperDifference("KL to the reference", "none", "logged only", "a metric"),
        PaperDifference("minibatches", "not obtained", "1", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[trpa]",
        "tests/golden/test_contrast.py::test_preference_example",
        "tests/golden/test_contrast.py::test_trpa_levels",
        "tests/golden/test_contrast.py::test_dpo_is_a_preference",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
    ),
    our_finding="The cause of its lower accuracy on hinted_sums (0.60 against 0.72) is not known. It is not the "
    "missing division by the std: GRPO without it keeps 0.73 and 0.68 with seeds 1 and 2, TRPA has 0.57 "
    "and 0.56. Nor is it the pairs of wrong and malformed answers, 8 % of all pairs (seed 1).",
)
