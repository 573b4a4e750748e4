"""`SuccessTracker`: a curriculum that tracks each prompt's pass rate, and draws uncertain ones more often. SPO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np

from groupwise.data import Curriculum, Draw, Rollout, Sample, Task
from groupwise.models import Purpose, uniform
from groupwise.rollout.attempts import graded
from groupwise.rollout.curriculum import check_prompts

__all__ = ["SuccessTracker"]


class Tracked(TypedDict):
    """The tracked values of a prompt: decayed counts of correct and other answers, newest answer with log-probs."""

    correct: float
    others: float
    tokens: NotRequired[list[int]]
    logp: NotRequired[list[float]]


class TrackerState(TypedDict):
    """State of `SuccessTracker`. The keys of `prompts` are indices of the task, as text."""

    seed: int
    drawn: int
    prompts: dict[str, Tracked]


@dataclass(frozen=True, slots=True)
class SuccessTracker(Curriculum[TrackerState]):
    """Draws a prompt with probability proportional to `sqrt(v (1 - v)) + explore`, v its tracked pass rate. SPO.

    Draws carry v as `baseline` in the memo. New answers are added to a prompt's numbers of correct and other answers
    after these are multiplied by `2^(-d / half)`, from `least` to `most`; d is how far the policy has moved on the
    prompt's last answer, from the part `drift` of the strategy `TrackedAnswers`. SPO, arXiv:2509.13232.

    A prompt's first answers are those with the role `initial`, if there are any, with the weight `1 / (1 - least)` in
    all. With `least = most` nothing is measured, and the state has no tokens.
    """

    learns_prompts: ClassVar[bool] = True
    needs_strategy: ClassVar[str] = "TrackedAnswers"

    explore: float = 0.05
    least: float = 0.875
    most: float = 0.96
    half: float = 0.06

    def __post_init__(self) -> None:
        if not (self.explore > 0 and 0 <= self.least <= self.most < 1 and self.half > 0):
            raise ValueError(f"{self}: needs explore > 0, 0 <= least <= most < 1 and half > 0")

    def init(self, task: Task, seed: int) -> TrackerState:
        return TrackerState(seed=seed, drawn=0, prompts={})

    def draw(self, state: TrackerState, task: Task, n: int, group_size: int) -> tuple[TrackerState, list[Draw]]:
        check_prompts(task)
        v = np.full(len(task), 0.5)
        for key, known in state["prompts"].items():
            v[int(key)] = rate(known)
        u = uniform((state["seed"], Purpose.CURRICULUM), state["drawn"], 0, np.arange(len(task)))
        # The smallest of exponential waiting times with these rates: drawn in proportion to them, without replacement.
        waiting = -np.log1p(-u) / (np.sqrt(v * (1 - v)) + self.explore)
        chosen = np.argsort(waiting, kind="stable")[:n].tolist()
        draws = [Draw(0, task[i], group_size, memo=self._memo(i, state["prompts"].get(str(i)))) for i in chosen]
        return {**state, "drawn": state["drawn"] + n}, draws

    def _memo(self, index: int, known: Tracked | None) -> dict[str, Any]:
        if known is None:
            return {"index": index}
        last = {"tokens": known["tokens"], "logp": known["logp"]} if "tokens" in known and "logp" in known else {}
        return {"index": index, "baseline": rate(known), **last}

    def observe(self, state: TrackerState, rollouts: Sequence[Rollout]) -> TrackerState:
        return state

    def end_iteration(self, state: TrackerState, rollouts: Sequence[Rollout]) -> TrackerState:
        prompts = dict(state["prompts"])
        for rollout in rollouts:
            key = str(rollout.draw.memo["index"])
            prompts[key] = self._updated(prompts.get(key) or self._first(rollout), rollout)
        return {**state, "prompts": prompts}

    def numbers(self, state: TrackerState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"known": len(state["prompts"])}

    def _first(self, rollout: Rollout) -> Tracked:
        """The tracked values of a prompt before its first answer, from its samples with the role `initial`."""
        initial = [s for s in rollout.samples if s.role == "initial"]
        mass = 1 / (1 - self.least) if initial else 1.0
        v = initial_rate(initial)
        return Tracked(correct=mass * v, others=mass * (1 - v))

    def _updated(self, known: Tracked, rollout: Rollout) -> Tracked:
        outcomes = graded(rollout.samples)
        answers = [s for s in rollout.samples if s.role == "answer" and s.verdict is not None]
        if not outcomes:
            return known
        keep = self.kept(answers[0].verdict.parts.get("drift", 0.0) if answers[0].verdict else 0.0)
        right = sum(outcomes)
        new = Tracked(correct=keep * known["correct"] + right, others=keep * known["others"] + len(outcomes) - right)
        if self.least < self.most:
            new["tokens"], new["logp"] = list(answers[0].tokens), list(answers[0].logp)
        return new

    def kept(self, drift: float) -> float:
        """The factor by which old counts are multiplied, given the mean absolute change of a token's log-prob.

        >>> [round(SuccessTracker().kept(d), 5) for d in (0, 0.005, 0.01, 0.02)]
        [0.96, 0.94387, 0.8909, 0.875]
        """
        return min(max(2 ** (-drift / self.half), self.least), self.most)


def rate(known: Tracked) -> float:
    """The tracked pass rate of a prompt."""
    return known["correct"] / (known["correct"] + known["others"])


def initial_rate(samples: Sequence[Sample]) -> float:
    """The first estimate of a pass rate, `(s + 1/2) / (n + 1)`: s of n samples with the role `initial` are correct."""
    outcomes = graded(samples, role="initial")
    return (sum(outcomes) + 0.5) / (len(outcomes) + 1)
