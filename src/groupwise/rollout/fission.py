"""`Fission`: a curriculum that also draws prompts with a failed attempt and its feedback."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict

from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.rollout.curriculum import Shuffled, ShuffledState

__all__ = ["Fission"]


class Failure(TypedDict):
    """A stored prompt with a failed attempt: the index of its problem, its token ids, and the attempt's iteration."""

    index: int
    context: list[int]
    iteration: int


class FissionState(TypedDict):
    """State of `Fission`: that of `Shuffled`, the number of finished iterations, and the failures not drawn yet."""

    shuffled: ShuffledState
    iteration: int
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class Fission(Curriculum[FissionState]):
    """Draws prompts in random order, and up to the fraction `share` stored failed attempts, if `least` are stored.

    The newest iteration's failures come first; of one iteration, a failure of each problem before a second one of any.
    The strategy `RecoveryPrompts` returns failures in the memo of the rollout's draw. They keep the problem's text and
    row, so that they are graded as the problem is. Failures of `oldest` iterations ago are dropped. Fission-GRPO,
    arXiv:2601.15625.
    """

    needs_strategy: ClassVar[str] = "RecoveryPrompts"

    least: int = 8
    oldest: int = 3
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: needs 0 <= share <= 1")

    def init(self, task: Task, seed: int) -> FissionState:
        return FissionState(shuffled=Shuffled().init(task, seed), iteration=0, failures=[])

    def draw(self, state: FissionState, task: Task, n: int, group_size: int) -> tuple[FissionState, list[Draw]]:
        failures = state["failures"]
        most = int(self.share * n) if len(failures) >= self.least else 0
        chosen = in_turns(failures)[:most]
        retried = [_retried(failures[i], task, group_size) for i in chosen]
        waiting = [failure for i, failure in enumerate(failures) if i not in set(chosen)]
        shuffled, indices = Shuffled().indices(state["shuffled"], task, n - len(retried))
        fresh = [Draw(0, task[i], group_size, {"index": i}) for i in indices]
        return {**state, "shuffled": shuffled, "failures": waiting}, [*retried, *fresh]

    def observe(self, state: FissionState, rollouts: Sequence[Rollout]) -> FissionState:
        return state

    def end_iteration(self, state: FissionState, rollouts: Sequence[Rollout]) -> FissionState:
        now = state["iteration"] + 1
        waiting = [failure for failure in state["failures"] if now - failure["iteration"] < self.oldest]
        memos = [rollout.draw.memo for rollout in rollouts]
        new = [Failure(index=m["index"], context=list(c), iteration=now) for m in memos for c in m.get("failures", ())]
        return {**state, "iteration": now, "failures": [*waiting, *new]}

    def numbers(self, state: FissionState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        recoveries = sum("recovery" in rollout.draw.memo for rollout in rollouts)
        return {"failures": len(state["failures"]), "recoveries": recoveries}


def in_turns(failures: Sequence[Failure]) -> list[int]:
    """The order in which failures are drawn: the newest iteration's first, and within it the problems in turns.

    >>> in_turns([Failure(index=i, context=[], iteration=k) for i, k in ((7, 1), (3, 2), (3, 2), (5, 2))])
    [1, 3, 2, 0]
    """
    earlier, turns = Counter[tuple[int, int]](), list[int]()
    for failure in failures:
        key = failure["iteration"], failure["index"]
        turns.append(earlier[key])
        earlier[key] += 1
    return sorted(range(len(failures)), key=lambda i: (-failures[i]["iteration"], turns[i], i))


def _retried(failure: Failure, task: Task, group_size: int) -> Draw:
    problem = task[failure["index"]]
    prompt = replace(problem, id=f"{problem.id} again", context=tuple(failure["context"]))
    return Draw(0, prompt, group_size, {"index": failure["index"], "recovery": True})
