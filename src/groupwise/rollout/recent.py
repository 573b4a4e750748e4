"""`RecentRewards`: a curriculum that passes the policy's recent mean score to the sampling strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from groupwise.data import Curriculum, Draw, Outcome, Rollout, Task
from groupwise.rollout.curriculum import Shuffled, ShuffledState

__all__ = ["RecentRewards"]


class RecentState(TypedDict):
    """State of `RecentRewards`: that of `Shuffled`, and the mean score of each of the last sampling rounds."""

    shuffled: ShuffledState
    means: list[float]


@dataclass(frozen=True, slots=True)
class RecentRewards(Curriculum[RecentState]):
    """Draws prompts in random order, and passes the mean score of the last `window` rounds on, as `Draw.memo["mean"]`.

    The replay buffer of rewards of Reg-GRPO, arXiv:2506.07464. The first draws carry no mean. Unverifiable answers do
    not count.
    """

    window: int = 50

    def init(self, task: Task, seed: int) -> RecentState:
        return RecentState(shuffled=Shuffled().init(task, seed), means=[])

    def draw(self, state: RecentState, task: Task, n: int, group_size: int) -> tuple[RecentState, list[Draw]]:
        shuffled, draws = Shuffled().draw(state["shuffled"], task, n, group_size)
        means = state["means"]
        memo = {"mean": sum(means) / len(means)} if means else {}
        return RecentState(shuffled=shuffled, means=means), [replace(draw, memo=memo) for draw in draws]

    def observe(self, state: RecentState, rollouts: Sequence[Rollout]) -> RecentState:
        verdicts = [s.verdict for r in rollouts for s in r.samples if s.verdict is not None and s.role == "answer"]
        scores = [verdict.value for verdict in verdicts if verdict.outcome is not Outcome.unverifiable]
        means = [*state["means"], sum(scores) / len(scores)][-self.window :] if scores else state["means"]
        return RecentState(shuffled=state["shuffled"], means=means)

    def end_iteration(self, state: RecentState, rollouts: Sequence[Rollout]) -> RecentState:
        return state
