"""SPO: Single-stream Policy Optimization."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np

from groupwise.advantages import AgainstSubscore, Whitened
from groupwise.data import Curriculum, Draw, Role, Rollout, Sample, Sampler, Strategy, Task, verdicts_have
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import RandomPurpose, uniform
from groupwise.objective import DualClip, Objective, token_mean
from groupwise.rewards import Correctness
from groupwise.rollout import Independent
from groupwise.rollout.curricula.shuffled import check_prompts
from groupwise.rollout.strategies.multi_round import attempts, graded

__all__ = ["SuccessTrackerCurriculum", "TrackedBaselineStrategy", "spo"]


class TrackedPrompt(TypedDict):
    """The tracked values of a prompt: decayed counts of correct and other answers, newest answer with log-probs."""

    correct_count: float
    other_count: float
    tokens: NotRequired[list[int]]
    logp: NotRequired[list[float]]


class TrackerState(TypedDict):
    """State of `SuccessTrackerCurriculum`. The keys of `tracked_prompts` are indices of the task, as text."""

    seed: int
    drawn_count: int
    tracked_prompts: dict[str, TrackedPrompt]


@dataclass(frozen=True, slots=True)
class SuccessTrackerCurriculum(Curriculum[TrackerState]):
    """Draws a prompt with probability proportional to `sqrt(v (1 - v)) + exploration`, v its tracked pass rate. SPO.

    Draws carry v as `baseline` in the metadata. New answers are added to a prompt's numbers of correct and other
    answers after these are multiplied by `2^(-d / drift_half_life)`, from `min_decay` to `max_decay`; d is how far the
    policy has moved on the prompt's last answer, from the subscore `drift` of the strategy `TrackedBaselineStrategy`.
    SPO, arXiv:2509.13232.

    A prompt's first answers are those with the role `initial`, if there are any, with the weight `1 / (1 - min_decay)`
    in all. With `min_decay = max_decay` nothing is measured, and the state has no tokens.
    """

    tracks_prompts: ClassVar[bool] = True
    required_strategy: ClassVar[str] = "TrackedBaselineStrategy"

    exploration: float = 0.05
    min_decay: float = 0.875
    max_decay: float = 0.96
    drift_half_life: float = 0.06

    def __post_init__(self) -> None:
        if not (self.exploration > 0 and 0 <= self.min_decay <= self.max_decay < 1 and self.drift_half_life > 0):
            raise ValueError(f"{self}: needs exploration > 0, 0 <= min_decay <= max_decay < 1 and drift_half_life > 0")

    def init(self, task: Task, seed: int) -> TrackerState:
        return TrackerState(seed=seed, drawn_count=0, tracked_prompts={})

    def draw(self, state: TrackerState, task: Task, n: int, group_size: int) -> tuple[TrackerState, list[Draw]]:
        check_prompts(task)
        v = np.full(len(task), 0.5)
        for key, known in state["tracked_prompts"].items():
            v[int(key)] = rate(known)
        u = uniform((state["seed"], RandomPurpose.CURRICULUM), state["drawn_count"], 0, np.arange(len(task)))
        # The smallest of exponential waiting times with these rates: drawn in proportion to them, without replacement.
        waiting = -np.log1p(-u) / (np.sqrt(v * (1 - v)) + self.exploration)
        chosen = np.argsort(waiting, kind="stable")[:n].tolist()
        draws = [
            Draw(0, task[i], group_size, metadata=self._memo(i, state["tracked_prompts"].get(str(i)))) for i in chosen
        ]
        return {**state, "drawn_count": state["drawn_count"] + n}, draws

    def _memo(self, index: int, known: TrackedPrompt | None) -> dict[str, Any]:
        if known is None:
            return {"index": index}
        last = {"tokens": known["tokens"], "logp": known["logp"]} if "tokens" in known and "logp" in known else {}
        return {"index": index, "baseline": rate(known), **last}

    def observe(self, state: TrackerState, rollouts: Sequence[Rollout]) -> TrackerState:
        return state

    def end_iteration(self, state: TrackerState, rollouts: Sequence[Rollout]) -> TrackerState:
        prompts = dict(state["tracked_prompts"])
        for rollout in rollouts:
            key = str(rollout.draw.metadata["index"])
            prompts[key] = self._updated(prompts.get(key) or self._first(rollout), rollout)
        return {**state, "tracked_prompts": prompts}

    def numbers(self, state: TrackerState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"known": len(state["tracked_prompts"])}

    def _first(self, rollout: Rollout) -> TrackedPrompt:
        """The tracked values of a prompt before its first answer, from its samples with the role `initial`."""
        initial = [s for s in rollout.samples if s.role == "initial"]
        mass = 1 / (1 - self.min_decay) if initial else 1.0
        v = initial_rate(initial)
        return TrackedPrompt(correct_count=mass * v, other_count=mass * (1 - v))

    def _updated(self, known: TrackedPrompt, rollout: Rollout) -> TrackedPrompt:
        outcomes = graded(rollout.samples)
        answers = [s for s in rollout.samples if s.role == "answer" and s.verdict is not None]
        if not outcomes:
            return known
        keep = self.kept(answers[0].verdict.subscores.get("drift", 0.0) if answers[0].verdict else 0.0)
        right = sum(outcomes)
        new = TrackedPrompt(
            correct_count=keep * known["correct_count"] + right,
            other_count=keep * known["other_count"] + len(outcomes) - right,
        )
        if self.min_decay < self.max_decay:
            new["tokens"], new["logp"] = list(answers[0].tokens), list(answers[0].logp)
        return new

    def kept(self, drift: float) -> float:
        """The factor by which old counts are multiplied, given the mean absolute change of a token's log-prob.

        >>> [round(SuccessTrackerCurriculum().kept(d), 5) for d in (0, 0.005, 0.01, 0.02)]
        [0.96, 0.94387, 0.8909, 0.875]
        """
        return min(max(2 ** (-drift / self.drift_half_life), self.min_decay), self.max_decay)


def rate(known: TrackedPrompt) -> float:
    """The tracked pass rate of a prompt."""
    return known["correct_count"] / (known["correct_count"] + known["other_count"])


def initial_rate(samples: Sequence[Sample]) -> float:
    """The first estimate of a pass rate, `(s + 1/2) / (n + 1)`: s of n samples with the role `initial` are correct."""
    outcomes = graded(samples, role="initial")
    return (sum(outcomes) + 0.5) / (len(outcomes) + 1)


@verdicts_have("baseline", "drift")
@dataclass(frozen=True, slots=True)
class TrackedBaselineStrategy(Strategy):
    """Runs another strategy, and adds the tracked pass rate to its verdicts as the subscore `baseline`. SPO.

    The subscore `drift` is the mean absolute change of a token's log-prob since the prompt's last answer was sampled.
    At a prompt's first draw, `first_draw_extra_answers` more answers with the role `first_draw_extra_answers` estimate
    its success rate; they are not trained. For the curriculum `SuccessTrackerCurriculum`. arXiv:2509.13232.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("initial", "at the first draw of a prompt"),)
    scores_answers: ClassVar[bool] = True

    first_draw_extra_answers: int = 8
    inner_strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        context = draw.prompt.token_ids
        baseline, initial = draw.metadata.get("baseline"), list[Sample]()
        if baseline is None:
            initial = await attempts(sampler, context, self.first_draw_extra_answers, role="initial")
            baseline = initial_rate(initial)
        drift = await self._drift(draw, sampler)
        rollout = await self.inner_strategy(draw, sampler)
        parts = {"baseline": baseline, "drift": drift}
        selected = rollout.selected and (*rollout.selected, *[True] * len(initial))
        samples = (*(s.add_subscores(parts) for s in rollout.samples), *initial)
        return replace(rollout, samples=samples, selected=selected)

    async def _drift(self, draw: Draw, sampler: Sampler) -> float:
        """The mean absolute log-prob change of the tokens of the prompt's last answer; 0 if there are none."""
        tokens, old = tuple(draw.metadata.get("tokens", ())), tuple(draw.metadata.get("logp", ()))
        if not tokens:
            return 0.0
        last = Sample(context=draw.prompt.token_ids, stream=(0,), tokens=tokens, origin=(0,) * len(tokens), logp=old)
        new = await sampler.score(last.context, last, temperature=sampler.sampling.temperature)
        return sum(abs(a - b) for a, b in zip(new, old, strict=True)) / len(tokens)


def spo(
    *,
    group_size: int = 1,
    initial: int = 8,
    exploration: float = 0.05,
    least: float = 0.875,
    most: float = 0.96,
    half: float = 0.06,
    minibatches: int = 8,
) -> Method:
    """One answer per prompt; the baseline is the prompt's tracked success rate. Whitened over the batch.

    Groups that are all correct or all wrong waste samples, and each prompt waits for its slowest answer. Here one
    answer is compared with the prompt's tracked success rate, in which old answers count less as the policy changes.

    Args:
        group_size: answers per prompt.
        initial: untrained answers at a prompt's first draw, which start its success rate, n.
        exploration: constant in the weight of a prompt's draw, eps, above 0.
        least: smallest factor of the old counts, rho_min, from 0 to most.
        most: largest factor of the old counts, rho_max, from least to below 1.
        half: mean change of a token's log-prob that gives the factor 1/2 (before its bounds), D_half, above 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        curriculum=SuccessTrackerCurriculum(exploration, least, most, half),
        strategy=TrackedBaselineStrategy(initial),
        shaping=(Correctness(),),
        advantage=(AgainstSubscore("baseline"), Whitened()),
        objective=Objective(surrogate=DualClip(0.2, 0.28, 10.0), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Single-stream Policy Optimization",
    arxiv="2509.13232",
    evidence="code read",
    code="verl-project/verl-recipe@48ea0a797fa29867ea0ad92aff7d284eec7d4be3:spo/spo_ray_trainer.py",
    parent="reinforce",
    formula="""\
A_x = (r_x - v_x - mean) / std over the batch,  v_x = a_x / (a_x + b_x) before r_x
a <- rho a + r, b <- rho b + 1 - r,  rho = clip(2^(-D / D_half), rho_min, rho_max)
D = mean over tokens of |log pi_then - log pi_now| on the last answer to x
x is drawn with weight sqrt(v_x (1 - v_x)) + eps;  at first a = (s + 1/2) / ((n + 1) (1 - rho_min)), b alike""",
    differences=(
        PaperDifference("drift D", "a KL divergence", "mean absolute change of log-probs", "the code's"),
        PaperDifference(
            "log-probs of D", "not specified", "after the updates", "when sampled: one update earlier, both"
        ),
        PaperDifference(
            "initial answers", "8 of the start model", "read from a file; 0 possible", "8, at the first draw"
        ),
        PaperDifference("pool of a draw", "the task", "a large batch of it", "the task, without replacement"),
        PaperDifference("bounds of rho, D_half", "not obtained", "0.875 and 0.96, 0.06", "0.875 and 0.96, 0.06"),
        PaperDifference("constant rho", "a variant", "0.875, nothing stored", "least = most"),
        PaperDifference("exploration eps", "not obtained", "0.05", "0.05"),
        PaperDifference("std of the batch", "not specified", "ddof 1, plus 1e-8", "ddof 1, plus 1e-8"),
        PaperDifference("clip range", "0.2 and 0.28", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        PaperDifference("answers per prompt, minibatches", "1, 8", "1, 8", "1, 8"),
        PaperDifference(
            "state", "last answers of all prompts", "in memory", "in the checkpoint: large for long answers"
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[spo]",
        "tests/golden/test_budgets.py::test_tracked_rates",
        "tests/golden/test_budgets.py::test_drift_of_the_last_answer",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="tokens",
    ),
)
