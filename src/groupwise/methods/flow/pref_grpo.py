"""Pref-GRPO: the reward of a picture is the share of its group that it beats in pairs."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, runtime_checkable

from groupwise.advantages import Bounded, EachStandardised
from groupwise.core.errors import ends_run
from groupwise.data import Draw, Prompt, Rollout, Sample, Sampler, Strategy, verdicts_have
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import DenoisingSettings, FlowGrpoNoise
from groupwise.objective import CentredStepRatio, Clip, InverseStepLengthWeight, Objective, token_mean
from groupwise.rewards import SubscoreReward
from groupwise.rollout import Independent
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.strategies.multi_round import is_graded

__all__ = ["HigherScore", "PairJudge", "PairwiseWinRatesStrategy", "pref_grpo"]


@runtime_checkable
class PairJudge(Protocol):
    """Compares two answers that have verdicts: 1 if the first is better, 0 if the second is, 1/2 for a tie."""

    __slots__ = ()

    @abstractmethod
    async def __call__(self, prompt: Prompt, first: Sample, second: Sample, /) -> float: ...


@dataclass(frozen=True, slots=True)
class HigherScore(PairJudge):
    """Prefers the answer whose verdict has the higher score, or `subscore`.

    A difference of at most `tie_margin` is a tie: a judge does not see it.
    """

    subscore: str = ""
    tie_margin: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.tie_margin < float("inf"):
            raise ValueError(f"{self}\nneeds tie_margin >= 0")

    async def __call__(self, prompt: Prompt, first: Sample, second: Sample) -> float:
        gap = self._score(first) - self._score(second)
        return 0.5 if abs(gap) <= self.tie_margin else float(gap > 0)

    def _score(self, sample: Sample) -> float:
        if sample.verdict is None:
            return 0.0
        return sample.verdict.subscores.get(self.subscore, 0.0) if self.subscore else sample.verdict.value


@verdicts_have("wins", "unjudged")
@dataclass(frozen=True, slots=True)
class PairwiseWinRatesStrategy(Strategy):
    """Adds the subscore `wins` to verdicts: the share of the group's other answers that an answer beats. Pref-GRPO.

    A tie is half a win. Each pair is judged once, in the order of sampling. A call of the judge that fails counts as a
    tie; the subscore `unjudged` is the share of an answer's pairs that failed. An answer without a rival has 0 wins.
    arXiv:2508.20751.
    """

    judge: PairJudge = HigherScore()
    inner_strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.inner_strategy(draw, sampler)
        samples = list(rollout.samples)
        rivals = [i for i, sample in enumerate(samples) if has_rivals(sample)]
        pairs = [(i, j) for i, j in combinations(rivals, 2) if samples[i].group == samples[j].group]
        results: dict[int, list[float | None]] = {i: [] for i in rivals}
        calls = (self._result(draw.prompt, samples[i], samples[j], sampler) for i, j in pairs)
        for (i, j), result in zip(pairs, await together(calls)):
            results[i].append(result)
            results[j].append(None if result is None else 1 - result)
        for i in rivals:
            samples[i] = samples[i].add_subscores(parts_of(results[i]))
        return replace(rollout, samples=tuple(samples))

    async def _result(self, prompt: Prompt, first: Sample, second: Sample, sampler: Sampler) -> float | None:
        """The result for the first sample; None if the judge fails, or returns no number from 0 to 1."""
        try:
            result = await sampler.outside(self.judge, prompt, first, second)
            return float(result) if 0 <= result <= 1 else None
        except Exception as error:
            if ends_run(error):
                raise
            return None


def has_rivals(sample: Sample) -> bool:
    """Whether a sample is compared: it is an answer, and its verdict is not unverifiable."""
    return sample.role == "answer" and is_graded(sample)


def parts_of(results: Sequence[float | None]) -> dict[str, float]:
    """The subscores of an answer from the results of its pairs; None is a pair without a result."""
    pairs = max(len(results), 1)
    wins = sum(0.5 if result is None else result for result in results)
    return {"wins": round(wins / pairs, 3), "unjudged": sum(result is None for result in results) / pairs}


def pref_grpo(
    *,
    group_size: int = 8,
    steps: int = 25,
    noise: float = 0.7,
    clip: float = 1e-4,
    wins: float = 1.0,
    subscores: tuple[tuple[str, float], ...] = (),
) -> Method:
    """GRPO-Guard with win rates as reward, and subscores of the verdict as optional further rewards.

    Reward models can give nearly equal scores in a group; standardisation enlarges the small differences, and the
    policy learns noise. Pref-GRPO compares the samples of a group in pairs, and the share of pairs that a sample wins
    is its reward. The win rate as the only reward is our reading.

    Args:
        group_size: samples per prompt, G.
        steps: denoising steps per sample.
        noise: level of the noise, at least 0.
        clip: distance of both clip bounds from 1, c.
        wins: weight of the standardised win rate, lambda_k.
        subscores: pairs of a subscore of the verdict and the weight of its standardised values, lambda_k.
    """
    return Method(
        group_size=group_size,
        denoise=DenoisingSettings(noise=FlowGrpoNoise(noise), steps=steps),
        strategy=PairwiseWinRatesStrategy(),
        shaping=(SubscoreReward("wins"),),
        advantage=(EachStandardised(subscores, main_reward_weight=wins, ddof=1, eps=1e-8), Bounded(5.0)),
        objective=Objective(
            surrogate=Clip(clip, clip, ratio=CentredStepRatio()),
            weights=(InverseStepLengthWeight(),),
            aggregate=token_mean,
        ),
        minibatches=2,
    )


REFERENCE = PaperReference(
    paper="Pref-GRPO: Pairwise Preference Reward-based GRPO for Stable Text-to-Image Reinforcement Learning",
    arxiv="2508.20751",
    evidence="code read",
    code="CodeGoat24/Pref-GRPO@3e787f6dd5a3051b40d61f07e9578468ac26130a:fastvideo/rewards/unifiedreward_think.py",
    parent="grpo_guard",
    formula="""\
R_i = (wins_i + ties_i / 2) / (G - 1), of G (G - 1) / 2 judged pairs
A_i = sum_k lambda_k (R_i^k - mean(R^k)) / std(R^k) over the group, within +-5
L = mean over samples and steps of max[ -A rho, -A clip(rho, 1 - c, 1 + c) ] / |dt|, rho as in GRPO-Guard""",
    differences=(
        PaperDifference("group size, steps", "not read", "8, 25", "8, 25"),
        PaperDifference("noise level, clip range", "not read", "0.7, 1e-4", "0.7, 1e-4"),
        PaperDifference(
            "weights of the rewards",
            "win rate alone (*inferred*)",
            "0.4 win rate, 0.6 CLIP score",
            "1 of the win rate, no others",
        ),
        PaperDifference(
            "judge", "UnifiedReward-Think 7B", "the same", "the score of the verifier; a `PairJudge` of your file"
        ),
        PaperDifference("a failed call of the judge", "not read", "a tie", "a tie, counted in the subscore `unjudged`"),
        PaperDifference("std of the sum over the batch", "not read", "an option", "`Whitened` after the others"),
        PaperDifference("trained steps", "not read", "0.6 of them, without the last", "all but the last"),
        PaperDifference("first noise", "not read", "equal in a group", "of each sample"),
    ),
    proof_tests=(
        "tests/golden/test_flow_pref_grpo.py::test_worked_wins_and_advantages",
        "tests/golden/test_flow_pref_grpo.py::test_whole_path",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="rings",
        parent="grpo_guard",
        min_difference=0.1,
        runs_matched_by="iterations",
        settings=(
            "method.denoise.steps = 10",
            'method.filter = "everything"',
            "method.objective.surrogate.low = 2e-6",
            "method.objective.surrogate.high = 2e-6",
            'method.shaping = [{kind = "SubscoreReward", subscore = "alignment"}]',
        ),
        own_settings=(
            'method.shaping = [{kind = "SubscoreReward", subscore = "wins"}]',
            'method.strategy.judge = {kind = "HigherScore", subscore = "alignment", tie_margin = 0.5}',
        ),
        acted="eval/accuracy_greedy",
        acted_least=0.05,
        acted_in="parent",
    ),
    toy_test="tests/golden/test_flow_pref_grpo.py::test_small_differences_are_ties_for_a_judge_with_a_margin",
    our_finding="Both runs are rewarded by a coordinate of the point, which grows with the distance from the centre: "
    "once as a score, once by pairs. Pairs only delay the hack: in an ablation with 40 iterations, added "
    "after the runs of the effect, greedy accuracy ends far below that of the start with both rewards.",
)
