"""RiskPO: Risk-based Policy Optimization."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.prompt_bundles import LEVELS, PromptBundleDraws, draws_of
from groupwise.data import Advantage, Batch, MethodState, Outcome
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, token_mean

__all__ = ["BundleScoreQuantiles", "PromptBundleRiskAdvantage", "riskpo"]


@dataclass(frozen=True, slots=True)
class PromptBundleRiskAdvantage(Advantage):
    """A tail-weighted advantage of each bundle's score, passed to the answers of a draw. RiskPO, arXiv:2510.00911.

    Scores below the quantile `low_quantile` weigh `tail_weight` times, scores above the quantile `high_quantile` not at
    all, so hard prompts matter most. `shift_to_nonpositive` shifts it to be at most 0. The quantiles come from the
    state `BundleScoreQuantiles`, and in the first iteration from the bundle. An answer of a draw gets the draw's
    advantage (`answer_weighting = "uniform"`), this times 0.5 if correct, else 1.5 (`score`), this over its prompt's
    std (`std`), or a part of it, in proportion to how far the answer is above its prompt's mean (`sum-mean`).
    """

    prompts_per_bundle: int = 5
    low_quantile: float = 0.2
    high_quantile: float = 0.8
    tail_weight: float = 1.5
    shift_to_nonpositive: bool = False
    answer_weighting: Literal["uniform", "score", "std", "sum-mean"] = "sum-mean"
    state: str = "quantiles"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not (self.prompts_per_bundle >= 1 and 0 < self.low_quantile < self.high_quantile < 1):
            raise ValueError(f"{self}: needs prompts_per_bundle >= 1 and 0 < low_quantile < high_quantile < 1")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        draws = draws_of(b, self.prompts_per_bundle)
        score, live = draws.scores(x), draws.live
        low, high = (self._quantile(level, score, draws, b) for level in (self.low_quantile, self.high_quantile))
        a = self.risk(score, low, high) / (draws.bundle_of_draw.spread(self._std(score, draws)) + self.eps)
        a = torch.where(live, a, 0.0)
        return torch.where(draws.in_complete_draw, self._split(draws.draw_of_sample.spread(a), x, b, draws), 0.0)

    def risk(self, score: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The advantage of each bundle score, given a lower and an upper quantile of bundle scores."""
        middle = (score - low).relu() - (score - high).relu() + (low - high if self.shift_to_nonpositive else 0.0)
        tail = -(low - score).relu() / (self.low_quantile + self.eps)
        return (self.tail_weight * tail + middle / (self.high_quantile - self.low_quantile + self.eps)) / (
            self.tail_weight + 1
        )

    def _quantile(self, level: float, score: Tensor, draws: PromptBundleDraws, b: Batch) -> Float[Tensor, " d"]:
        if tracked := b.method_states.get(self.state):
            return torch.full_like(score, tracked[min(range(len(LEVELS)), key=lambda i: abs(LEVELS[i] - level))])
        own = torch.zeros_like(score)
        for k in range(draws.bundle_of_draw.count):
            here = draws.live & (draws.bundle_of_draw.index == k)
            if bool(here.any()):
                own[here] = score[here].quantile(level)
        return own

    def _std(self, score: Tensor, draws: PromptBundleDraws) -> Float[Tensor, " b"]:
        """The standard deviation of each bundle's scores; 1 for a single score or for equal ones."""
        of = draws.bundle_of_draw.keep(draws.live)
        variance = of.total(of.away(score[draws.live]) ** 2) / (of.size(score) - 1).clamp(min=1)
        return variance.sqrt().masked_fill(variance == 0, 1.0)

    def _split(self, a: Tensor, x: Tensor, b: Batch, draws: PromptBundleDraws) -> Float[Tensor, " s"]:
        g = b.groups
        match self.answer_weighting:
            case "uniform":
                return a
            case "score":
                return torch.where(b.outcome == Outcome.correct, 0.5, 1.5) * a
            case "std":
                std = (g.total(g.away(x) ** 2) / (g.size(x) - 1).clamp(min=1)).sqrt()
                return a / (g.spread(std.masked_fill(std <= 1e-3, 1.0)) + self.eps)
            case "sum-mean":
                above = torch.where(draws.in_complete_draw, g.away(x), 0.0)
                total = draws.draw_of_sample.spread(draws.draw_of_sample.total(above))
                equal = a / draws.draw_of_sample.spread(
                    draws.draw_of_sample.total(draws.in_complete_draw.double()).clamp(min=1)
                )
                return torch.where(total.abs() <= 1e-6, equal, a * above / total.masked_fill(total == 0, 1.0))


@dataclass(frozen=True, slots=True)
class BundleScoreQuantiles(MethodState):
    """Running quantiles (0.05, 0.10, ... 0.95) of the scores of bundles of prompts: one small step per iteration.

    `q += step_size (level - share of scores below q)`. The first iteration sets them. RiskPO, arXiv:2510.00911. The
    authors' released code computes them and then does not use them.
    """

    prompts_per_bundle: int = 5
    step_size: float = 0.1

    def init(self) -> list[float]:
        return []

    def __call__(self, state: list[float], batch: Batch, stats: Mapping[str, float]) -> list[float]:
        draws = draws_of(batch, self.prompts_per_bundle)
        scores = draws.scores(batch.reward)[draws.live]
        if not len(scores):
            return state
        if not state:
            return [float(scores.quantile(level)) for level in LEVELS]
        return [q + self.step_size * (level - float((scores < q).double().mean())) for q, level in zip(state, LEVELS)]


def riskpo(
    *,
    group_size: int = 10,
    prompts_per_bundle: int = 5,
    low_quantile: float = 0.2,
    high_quantile: float = 0.8,
    answer_weighting: Literal["uniform", "score", "std", "sum-mean"] = "sum-mean",
    minibatches: int = 4,
) -> Method:
    """Scores bundles of prompts. The advantage is steepest at low bundle scores, and constant at the highest.

    The mean reward favours answers that are already likely: entropy can collapse, and hard prompts give no signal. Here
    low scores weigh more and the highest have no weight; bundles of prompts turn binary rewards into graded scores.

    Args:
        group_size: answers per prompt.
        prompts_per_bundle: prompts per bundle, B.
        low_quantile: level of the lower quantile of bundle scores, a, between 0 and high.
        high_quantile: level of the upper quantile of bundle scores, b, between low and 1.
        answer_weighting: division of an advantage among a bundle's answers: "uniform", "score", "std" or "sum-mean".
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(
            PromptBundleRiskAdvantage(
                prompts_per_bundle, low_quantile, high_quantile, answer_weighting=answer_weighting
            ),
        ),
        objective=Objective(aggregate=token_mean),
        states=(("quantiles", BundleScoreQuantiles(prompts_per_bundle)),),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    arxiv="2510.00911",
    evidence="code read",
    code="RTkenny/RiskPO@65ec40c935f5726aa2d80160d9056b1236d5551e:verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
R_j = sum of the j-th answers' rewards over a bundle of B prompts; q_a, q_b its quantiles at a and b
A_j = ( w V_j + U_j ) / (w + 1) / std of the bundle
V_j = - (q_a - R_j)+ / a,  U_j = [ (R_j - q_a)+ - (R_j - q_b)+ ] / (b - a)""",
    differences=(
        PaperDifference("objective", "risk measure of the quantile range", "the weighted sum above", "the code's"),
        PaperDifference("ratio", "of the sequence", "of each token", "of each token"),
        PaperDifference(
            "quantiles", "tracked", "computed, then not used", "tracked, used from the second iteration on"
        ),
        PaperDifference("equal scores of a bundle", "not specified", "divided by 1e-6", "std 1 (inferred)"),
        PaperDifference("a, b, B, w", "0.2, 0.8 or 0.9, 5", "0.2, 0.8, 5, 1.5", "0.2, 0.8, 5, 1.5"),
        PaperDifference("split among answers", "not obtained", "sum-mean for hard data, std for easy", "sum-mean"),
        PaperDifference("group size, minibatches", "10; 4", "10; 4", "10; 4"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[riskpo]",
        "tests/golden/test_reward.py::test_risk_table",
        "tests/golden/test_reward.py::test_tracked_quantile",
        "tests/golden/test_reward.py::test_sum_mean_split",
    ),
    expected_effect=ExpectedEffect(
        metric="entropy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("iterations = 10", "prompts = 10", "method.objective.penalties = []"),
    ),
)
