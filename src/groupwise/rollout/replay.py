"""`FreshReplay`: a curriculum that stores answers and draws them again, by their score and their age."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, TypedDict

from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.models import Purpose, keyed_random
from groupwise.rollout.attempts import score_of
from groupwise.rollout.curriculum import Shuffled, ShuffledState
from groupwise.rollout.stored import stored

__all__ = ["FreshReplay"]

LEAST = 1e-6
"""Added to each sampling priority `|score - centre|`, so that an answer with the score `centre` can be drawn."""
FLOOR = 1e-8
"""The least sampling priority, however old an answer is."""


class Entry(TypedDict):
    """A stored answer: problem index, priority before decay, number of the iteration that sampled it, the sample."""

    index: int
    priority: float
    time: int
    sample: dict[str, Any]


class ReplayState(TypedDict):
    """State of `FreshReplay`: that of `Shuffled`, the entries, iterations with new answers, replay rounds since."""

    shuffled: ShuffledState
    entries: list[Entry]
    time: int
    replays: int


@dataclass(frozen=True, slots=True)
class FreshReplay(Curriculum[ReplayState]):
    """After each round of new answers, `replays` rounds draw stored ones, by score and freshness. FreshPER.

    An answer's chance is proportional to `e ** alpha`, `e = |score - centre| exp(-age / life)`; its age counts sampled
    iterations. Its draw has the part `replay` for the strategy `Replayed`, `(N P) ** -beta` over its largest value.
    A round without enough stored answers samples new ones. Draws are stratified and can repeat. With scores of 0 and 1,
    `centre = 0.5` draws right and wrong answers alike. The oldest beyond `capacity` are dropped. Checkpoints have all
    entries: thousands of short answers, not more. FreshPER, arXiv:2604.16918.
    """

    needs_strategy: ClassVar[str] = "Replayed"
    replays_answers: ClassVar[bool] = True

    replays: int = 1
    capacity: int = 4096
    life: float = 500.0
    alpha: float = 0.6
    beta: float = 0.4
    centre: float = 0.0

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.life <= 0 or min(self.alpha, self.beta, self.replays) < 0:
            raise ValueError(f"{self}: needs capacity >= 1, life > 0, and alpha, beta and replays >= 0")

    def init(self, task: Task, seed: int) -> ReplayState:
        return ReplayState(shuffled=Shuffled().init(task, seed), entries=[], time=0, replays=self.replays)

    def draw(self, state: ReplayState, task: Task, n: int, group_size: int) -> tuple[ReplayState, list[Draw]]:
        entries, count = state["entries"], n * group_size
        if state["replays"] < self.replays and len(entries) >= count:
            random = keyed_random((state["shuffled"]["seed"], Purpose.CURRICULUM), state["time"], state["replays"])
            chances, weights = self.weights([(e["priority"], state["time"] - e["time"]) for e in entries])
            places = stratified(chances, count, random)
            draws = [_again(entries[i], weights[i], task) for i in places]
            return {**state, "replays": state["replays"] + 1}, draws
        shuffled, indices = Shuffled().indices(state["shuffled"], task, n)
        draws = [Draw(0, task[i], group_size, {"index": i}) for i in indices]
        return {**state, "shuffled": shuffled, "replays": 0}, draws

    def observe(self, state: ReplayState, rollouts: Sequence[Rollout]) -> ReplayState:
        return state

    def end_iteration(self, state: ReplayState, rollouts: Sequence[Rollout]) -> ReplayState:
        fresh = [r for r in rollouts if "sample" not in r.draw.memo]  # the others replay stored answers
        if rollouts and not fresh:
            return state
        now = state["time"] + 1
        new = [
            Entry(
                index=r.draw.memo["index"], priority=abs(score_of(s) - self.centre) + LEAST, time=now, sample=stored(s)
            )
            for r in fresh
            for i, s in enumerate(r.samples)
            if s.role == "answer" and (r.selected is None or r.selected[i])
        ]
        return {**state, "time": now, "entries": [*state["entries"], *new][-self.capacity :]}

    def numbers(self, state: ReplayState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        replayed = sum("sample" in rollout.draw.memo for rollout in rollouts)
        return {"stored": len(state["entries"]), "replayed": replayed}

    def weights(self, entries: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """For (priority, age) pairs: the probabilities to be drawn, and the importance weights, whose largest is 1.

        >>> chances, _ = FreshReplay().weights([(1.000001, 0), (1.000001, 500), (0.200001, 0), (1e-6, 0)])
        >>> [round(p, 6) for p in chances]
        [0.51819, 0.284389, 0.197291, 0.00013]
        """
        decayed = [max(priority * math.exp(-age / self.life), FLOOR) ** self.alpha for priority, age in entries]
        total = math.fsum(decayed)
        chances = [x / total for x in decayed]
        weights = [(len(chances) * p) ** -self.beta for p in chances]
        largest = max(weights)
        return chances, [w / largest for w in weights]


def stratified(chances: Sequence[float], n: int, random: Random) -> list[int]:
    """Stratified sampling: `n` indices, one from each of n equal parts of the cumulated probabilities.

    >>> stratified([0.25, 0.25, 0.25, 0.25], 4, Random(0))
    [0, 1, 2, 3]
    """
    ends = list(accumulate(chances))
    return [min(bisect_right(ends, (i + random.random()) / n * ends[-1]), len(ends) - 1) for i in range(n)]


def _again(entry: Entry, weight: float, task: Task) -> Draw:
    memo = {"index": entry["index"], "sample": entry["sample"], "replay": weight}
    return Draw(0, task[entry["index"]], 1, memo)
