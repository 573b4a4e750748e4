"""Reg-GRPO: group-normalised log-ratios are fitted to group-normalised rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import (
    Batch,
    Curriculum,
    Draw,
    Outcome,
    Rollout,
    Sample,
    Sampler,
    Strategy,
    Surrogate,
    Task,
    UnsplitUnit,
)
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, group_mean
from groupwise.rollout import Shuffled
from groupwise.rollout.curricula.shuffled import ShuffledState
from groupwise.rollout.strategies.multi_round import attempts, is_correct, score_of, with_role

__all__ = ["CorrectPrefixCuesStrategy", "LogRatioZScoreFit", "RecentMeanScoresCurriculum", "reg_grpo"]


@dataclass(frozen=True, slots=True)
class LogRatioZScoreFit(Surrogate):
    """`-(A - z)^2`: fits z, the z-score of an answer's log-ratio in its group, to the advantage A. Reg-GRPO.

    `eps` is added to the standard deviation. At the policy before the update all log-ratios are 0; the std there is
    floored, so that its gradient is finite.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    eps: float = 1e-4

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, g = b.sequences, b.groups
        gap = s.total(b.logp - b.logp_old)
        away = gap - g.spread(g.mean(gap))  # Segments.away has no gradient among equal values, where a run starts
        std = g.mean(away**2).clamp(min=1e-12).sqrt() + self.eps
        z = away / g.spread(std)
        return -s.spread((s.mean(b.advantage) - z) ** 2)


@dataclass(frozen=True, slots=True)
class CorrectPrefixCuesStrategy(Strategy):
    """Samples answers. If their mean score is below the recent mean, new ones continue a prefix of a correct one.

    The share of the correct answer that is given grows with the gap to the mean of recent rewards
    (`RecentMeanScoresCurriculum`), up to `max_prefix_fraction`. The cue is not trained, and the first round gets the
    role `first`. Reg-GRPO's augmentation of hard prompts, arXiv:2506.07464; the share is our reading.
    """

    max_prefix_fraction: float = 0.5

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await attempts(sampler, draw.prompt.token_ids, draw.n)
        cue = self._cue(answers, draw.metadata.get("mean"))
        if not cue:
            return Rollout(draw, tuple(answers))
        again = await attempts(sampler, draw.prompt.token_ids, draw.n, prefix=cue)
        return Rollout(draw, (*again, *with_role(answers, "first")))

    def _cue(self, answers: list[Sample], usual: float | None) -> tuple[int, ...]:
        """A prefix of a correct answer, longer for a lower mean score; empty for a mean of `usual` or more."""
        correct = next((s for s in answers if is_correct(s)), None)
        mean = sum(map(score_of, answers)) / len(answers)
        if usual is None or correct is None or mean >= usual:
            return ()
        share = self.max_prefix_fraction * (min((usual - mean) / abs(usual), 1.0) if usual else 1.0)
        return correct.tokens[: int(share * (len(correct.tokens) - 1))]


class RecentMeanScoresState(TypedDict):
    """State of `RecentMeanScoresCurriculum`: that of `Shuffled`, and the mean scores of the last sampling rounds."""

    shuffled_state: ShuffledState
    recent_means: list[float]


@dataclass(frozen=True, slots=True)
class RecentMeanScoresCurriculum(Curriculum[RecentMeanScoresState]):
    """Draws prompts in random order, with the mean score of the last `window_rounds` rounds in `Draw.metadata["mean"]`.

    The replay buffer of rewards of Reg-GRPO, arXiv:2506.07464. The first draws carry no mean. Unverifiable answers do
    not count.
    """

    window_rounds: int = 50

    def init(self, task: Task, seed: int) -> RecentMeanScoresState:
        return RecentMeanScoresState(shuffled_state=Shuffled().init(task, seed), recent_means=[])

    def draw(
        self, state: RecentMeanScoresState, task: Task, n: int, group_size: int
    ) -> tuple[RecentMeanScoresState, list[Draw]]:
        shuffled, draws = Shuffled().draw(state["shuffled_state"], task, n, group_size)
        means = state["recent_means"]
        metadata = {"mean": sum(means) / len(means)} if means else {}
        return RecentMeanScoresState(shuffled_state=shuffled, recent_means=means), [
            replace(draw, metadata=metadata) for draw in draws
        ]

    def observe(self, state: RecentMeanScoresState, rollouts: Sequence[Rollout]) -> RecentMeanScoresState:
        verdicts = [s.verdict for r in rollouts for s in r.samples if s.verdict is not None and s.role == "answer"]
        scores = [verdict.value for verdict in verdicts if verdict.outcome is not Outcome.unverifiable]
        means = (
            [*state["recent_means"], sum(scores) / len(scores)][-self.window_rounds :]
            if scores
            else state["recent_means"]
        )
        return RecentMeanScoresState(shuffled_state=state["shuffled_state"], recent_means=means)

    def end_iteration(self, state: RecentMeanScoresState, rollouts: Sequence[Rollout]) -> RecentMeanScoresState:
        return state


def reg_grpo(
    *, group_size: int = 8, kl: float = 0.04, window_rounds: int = 50, cue: float = 0.5, epochs: int = 2
) -> Method:
    """Fits a group's standardised log-ratios to its advantages. Hard prompts continue the start of a correct answer.

    GRPO's clip gives no gradient to tokens that moved far, and groups of equal rewards have none at all. Here
    log-ratios are fitted without a clip, and hard prompts get the start of a correct answer; the details are our
    reading.

    Args:
        group_size: answers per prompt, G.
        kl: coefficient of the KL penalty to the initial policy, beta.
        window_rounds: number of sampling rounds in the recent mean reward that marks hard prompts.
        cue: largest fraction of a correct answer that a hard prompt gets, from 0 to 1.
        epochs: passes over the answers of an iteration.
    """
    return Method(
        group_size=group_size,
        curriculum=RecentMeanScoresCurriculum(window_rounds),
        strategy=CorrectPrefixCuesStrategy(cue),
        advantage=(Standardised(ddof=0, eps=1e-4),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=LogRatioZScoreFit(), penalties=(KL(kl),), aggregate=group_mean),
        epochs=epochs,
    )


REFERENCE = PaperReference(
    paper="DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO",
    arxiv="2506.07464",
    evidence="our reading",
    parent="grpo",
    formula="""\
L = 1/G sum_i (A_i - z(d)_i)^2 + beta KL,  d_i = sum_t log(pi / pi_old),  z = (d - mean(d)) / std(d) of the group
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("log-ratio", "of the sequence", "not available", "sum over tokens (inferred)"),
        PaperDifference("sign of the KL", "printed with a minus", "not available", "a penalty (inferred)"),
        PaperDifference(
            "std where all log-ratios are 0",
            "not specified",
            "not available",
            "variance floored at 1e-12, so its gradient is finite (inferred)",
        ),
        PaperDifference(
            "answers without a token",
            "not specified",
            "not available",
            "counted in mean and std of d; they have no term (inferred)",
        ),
        PaperDifference(
            "harder and easier inputs", "video frames and cues", "not available", "cues of correct answers alone"
        ),
        PaperDifference(
            "length of a cue",
            "grows with the difficulty",
            "not available",
            "share of the gap to recent rewards (inferred)",
        ),
        PaperDifference("KL, window, group size, epochs", "not obtained", "not available", "0.04, 50, 8, 2 (inferred)"),
        PaperDifference("largest share of a cue", "not obtained", "not available", "0.5 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[reg_grpo]",
        "tests/golden/test_contrast.py::test_regression_example",
        "tests/golden/test_contrast.py::test_regression_does_not_see_scale",
        "tests/golden/test_contrast.py::test_cue_of_a_hard_prompt",
    ),
    expected_effect=ExpectedEffect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10",),
    ),
)
