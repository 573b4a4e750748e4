"""`HintLadder`: a curriculum that remembers how strong a hint each prompt needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict

from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.rollout.attempts import graded
from groupwise.rollout.curriculum import Shuffled, ShuffledState

__all__ = ["HintLadder"]


class LadderState(TypedDict):
    """State of `HintLadder`: that of `Shuffled`, and the hint level of each prompt by its id, where it is above 0."""

    shuffled: ShuffledState
    levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class HintLadder(Curriculum[LadderState]):
    """Draws prompts in random order, and passes each prompt's hint level to the strategy as `Draw.memo["level"]`.

    SAGE-light, arXiv:2602.03143. A pass rate of at most `least` raises the level of a prompt by one, one above `most`
    lowers it. Unverifiable answers do not count.
    """

    learns_prompts: ClassVar[bool] = True
    needs_strategy: ClassVar[str] = "AtLevel"

    least: float = 0.1
    most: float = 0.35
    levels: int = 3

    def init(self, task: Task, seed: int) -> LadderState:
        return LadderState(shuffled=Shuffled().init(task, seed), levels={})

    def draw(self, state: LadderState, task: Task, n: int, group_size: int) -> tuple[LadderState, list[Draw]]:
        shuffled, draws = Shuffled().draw(state["shuffled"], task, n, group_size)
        levels = state["levels"]
        draws = [replace(draw, memo={"level": levels.get(draw.prompt.id, 0)}) for draw in draws]
        return LadderState(shuffled=shuffled, levels=levels), draws

    def observe(self, state: LadderState, rollouts: Sequence[Rollout]) -> LadderState:
        levels = dict(state["levels"])
        for rollout in rollouts:
            if outcomes := graded(rollout.samples):
                rate = sum(outcomes) / len(outcomes)
                prompt = rollout.draw.prompt.id
                level = levels.get(prompt, 0) + (rate <= self.least) - (rate > self.most)
                levels[prompt] = min(max(level, 0), self.levels)
        return LadderState(shuffled=state["shuffled"], levels={k: v for k, v in levels.items() if v})

    def end_iteration(self, state: LadderState, rollouts: Sequence[Rollout]) -> LadderState:
        return state

    def numbers(self, state: LadderState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"hinted": sum(rollout.draw.memo.get("level", 0) > 0 for rollout in rollouts)}
