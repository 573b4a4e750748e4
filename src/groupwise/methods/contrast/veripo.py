"""VerIPO: phases of GRPO, and between them preferences among verified answers."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Finish, Ids, NeededMeasure, Outcome, Shaping, Subscore
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, PairwisePreference, group_mean, pair_mean
from groupwise.rewards import AddSubscore, Correctness

__all__ = ["ChecksReward", "veripo"]


@dataclass(frozen=True, slots=True)
class ChecksReward(Shaping):
    """Creates the reward: 1 (with `prefer_longer` plus a length term) for an answer that passes all checks, else 0.

    The checks: it is correct, it is complete, its subscore `reasoning_consistency_subscore` is at least 1/2 (the
    reasoning leads to the answer), and at most a share `max_repeated_ngram_fraction` of its n-grams of tokens occurred
    before. For `PairwisePreference`: of two answers that pass, the longer one is preferred. VerIPO, arXiv:2505.19000;
    the rules for repetition and length are our reading.
    """

    reasoning_consistency_subscore: str = ""
    max_repeated_ngram_fraction: float = 0.5
    ngram_size: int = 4
    prefer_longer: bool = True

    def __post_init__(self) -> None:
        if self.ngram_size < 1 or not 0 <= self.max_repeated_ngram_fraction <= 1:
            raise ValueError(f"{self}: needs ngram_size >= 1 and 0 <= max_repeated_ngram_fraction <= 1")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return (
            frozenset({Subscore(self.reasoning_consistency_subscore)})
            if self.reasoning_consistency_subscore
            else frozenset()
        )

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        bonus = b.length.to(reward.dtype) / max(b.max_new_tokens, 1) if self.prefer_longer else torch.zeros_like(reward)
        return torch.where(self._passes(b), 1 + bonus, 0.0)

    def _passes(self, b: Batch) -> Bool[Tensor, " s"]:
        shares = [repetition(s.tokens, self.ngram_size) for s in b.samples]
        original = (
            torch.tensor(shares, dtype=torch.float64, device=b.verdict_score.device) <= self.max_repeated_ngram_fraction
        )
        passes = (b.outcome == Outcome.correct) & (b.finish != Finish.length) & original
        return (
            passes & (b[Subscore(self.reasoning_consistency_subscore)] >= 0.5)
            if self.reasoning_consistency_subscore
            else passes
        )


def repetition(tokens: Ids, n: int) -> float:
    """The share of n-grams that occurred before in the same answer; 0 without an n-gram.

    >>> repetition((1, 2, 1, 2, 1, 2), 2), repetition((1, 2, 3), 2)
    (0.6, 0.0)
    """
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def veripo(
    *,
    phase: Literal["align", "search"] = "align",
    group_size: int = 8,
    consistent: str = "chain_true",
    form: str = "",
    beta: float = 0.1,
    minibatches: int = 1,
) -> Method:
    """DPO on pairs of sampled answers: those that pass all checks are preferred. `phase = "search"` is GRPO.

    GRPO on outcomes reinforces correct answers with wrong or contradictory reasoning, and its search is slow. Phases of
    GRPO alternate with DPO on answers that were checked; the rules for the pairs are our reading.

    Args:
        phase: "align" (DPO on pairs) or "search" (GRPO).
        group_size: answers per prompt.
        consistent: name of the subscore that is at least 1/2 if the reasoning leads to the answer; empty: no check.
        form: name of the subscore for the format, added with weight 0.5 in search; empty: none.
        beta: factor of the difference of log-ratios in align, beta.
        minibatches: optimizer steps per iteration of align.
    """
    if phase == "search":
        shaping = (Correctness(), AddSubscore(form, 0.5)) if form else (Correctness(),)
        objective = Objective(surrogate=Clip(0.2, 0.2), aggregate=group_mean)
        return Method(group_size=group_size, shaping=shaping, advantage=(Standardised(),), objective=objective)
    return Method(
        group_size=group_size,
        shaping=(ChecksReward(consistent),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=PairwisePreference(beta), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="VerIPO: Cultivating Long Reasoning in Video-LLMs via Verifier-Gudied Iterative Policy Optimization",
    arxiv="2505.19000",
    evidence="our reading",
    contribution_kind="recipe",
    parent="grpo",
    formula="""\
search: GRPO on r = [correct] + 0.5 [format]
align: J = mean over pairs of log sigmoid(beta (d_+ - d_-)),  d = sum_t log(pi / pi_ref), pi_ref at the phase's start
+ passes the checks (correct, consistent, complete, not repetitive); - does not, or is shorter
recipe: search, align, search, ...""",
    differences=(
        PaperDifference("phases", "activation, search, align, search", "not released", "recipes/veripo.toml"),
        PaperDifference(
            "rollouts of the pairs", "logged in the search", "not released", "sampled at the phase's start"
        ),
        PaperDifference("consistency", "a small language model reads the reasoning", "not released", "a subscore"),
        PaperDifference("repetition", "rejected; rule not obtained", "not released", "0.5 of 4-grams (inferred)"),
        PaperDifference("length", "preferred; rule not obtained", "not released", "longer of two that pass (inferred)"),
        PaperDifference("reflective pairs", "a corrected first attempt over it", "not released", "left out"),
        PaperDifference("solved prompts", "80 % are dropped between loops", "not released", "left out"),
        PaperDifference(
            "numeric answers", "mean relative accuracy", "the same in the evaluation", "the task's verifier"
        ),
        PaperDifference("beta, group size", "0.1 and 8", "0.1 and 8 (README)", "0.1 and 8"),
        PaperDifference("minibatches", "batches of 32 pairs", "not released", "1; 8 in the recipe"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[veripo]",
        "tests/golden/test_methods.py::test_whole_path[veripo, search]",
        "tests/golden/test_contrast.py::test_dpo_is_a_preference",
        "tests/golden/test_contrast.py::test_checks_of_answers",
        "tests/golden/test_contrast.py::test_preference_at_the_reference",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/subscores_of_correct/chain_true",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
    ),
)
