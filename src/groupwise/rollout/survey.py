"""`Survey`: a curriculum that tests prompts first, then trains where scores differ, also from mid-answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import pstdev
from typing import ClassVar, TypedDict

from groupwise.data import Curriculum, Draw, Rollout, Sample, Task
from groupwise.models import Purpose, keyed_random
from groupwise.rollout.attempts import best_of, score_of
from groupwise.rollout.curriculum import Shuffled, ShuffledState

__all__ = ["Survey"]


class Beginning(TypedDict):
    """A starting point for training: a problem's index, and the first tokens of an answer to continue, or none."""

    index: int
    prefix: list[int]


class SurveyState(TypedDict):
    """State of `Survey`: that of `Shuffled`, the number of survey rounds, and the starting points of the last one.

    `found` is None before a survey round.
    """

    shuffled: ShuffledState
    rounds: int
    found: list[Beginning] | None


@dataclass(frozen=True, slots=True)
class Survey(Curriculum[SurveyState]):
    """Tests prompts with `samples` untrained answers each, then draws prompts and prefixes of answers to train on.

    A prompt is found if the std of its scores is at least `spread`. If its best answer scores at least `best`, so are
    beginnings of that answer, at ends of lines: `ceil(share * lines)` of them, drawn with replacement, line k with a
    chance proportional to `decay ** k`; a conversation has none. The second round draws among all that was found. For
    the strategy `Surveyed`, with `refill = 1`. ReST-GRPO, arXiv:2508.19576.
    """

    needs_strategy: ClassVar[str] = "Surveyed"
    rounds: ClassVar[int] = 2

    samples: int = 5
    spread: float = 0.05
    best: float = 0.9
    share: float = 0.5
    decay: float = 0.95
    line: str = "\n"

    def __post_init__(self) -> None:
        if not self.line or self.samples < 1 or not 0 < self.decay <= 1:
            raise ValueError(f"{self}: needs samples >= 1, 0 < decay <= 1, and line not empty")

    def init(self, task: Task, seed: int) -> SurveyState:
        return SurveyState(shuffled=Shuffled().init(task, seed), rounds=0, found=None)

    def draw(self, state: SurveyState, task: Task, n: int, group_size: int) -> tuple[SurveyState, list[Draw]]:
        found = state["found"]
        if found is None:
            shuffled, indices = Shuffled().indices(state["shuffled"], task, n)
            memos = [{"index": i, "survey": True} for i in indices]
            draws = [Draw(0, task[i], self.samples, memo) for i, memo in zip(indices, memos)]
            return SurveyState(shuffled=shuffled, rounds=state["rounds"] + 1, found=None), draws
        chosen = self._random(state, 1).sample(found, min(n, len(found)))
        draws = [Draw(0, task[b["index"]], group_size, {"index": b["index"], "prefix": b["prefix"]}) for b in chosen]
        return {**state, "found": []}, draws

    def observe(self, state: SurveyState, rollouts: Sequence[Rollout]) -> SurveyState:
        if state["found"] is not None:
            return state
        random = self._random(state, 0)
        return {**state, "found": [b for rollout in rollouts for b in self.beginnings(rollout, random)]}

    def end_iteration(self, state: SurveyState, rollouts: Sequence[Rollout]) -> SurveyState:
        return {**state, "found": None}

    def numbers(self, state: SurveyState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        memos = [rollout.draw.memo for rollout in rollouts]
        return {"surveyed": sum("survey" in m for m in memos), "beginnings": sum(bool(m.get("prefix")) for m in memos)}

    def beginnings(self, rollout: Rollout, random: Random) -> list[Beginning]:
        """The starting points from a prompt's test answers: none, or the prompt and prefixes of the best answer."""
        index, answers = rollout.draw.memo["index"], [s for s in rollout.samples if s.role == "answer"]
        if not answers or pstdev(map(score_of, answers)) < self.spread:
            return []
        best = best_of(answers)[0]
        ends = self._line_ends(best) if score_of(best) >= self.best and not best.is_conversation else []
        count = math.ceil(self.share * len(ends)) if ends else 0
        drawn = random.choices(ends, [self.decay**k for k in range(len(ends))], k=count) if ends else []
        return [Beginning(index=index, prefix=list(best.tokens[:end])) for end in (0, *drawn)]

    def _line_ends(self, answer: Sample) -> list[int]:
        """The number of tokens up to each end of a line, except where nothing is left to write."""
        starts = (0, *answer.ends)
        ends = [i + 1 for i, end in enumerate(answer.ends) if self.line in answer.text[starts[i] : end]]
        written = len(answer.text.rstrip())
        return [end for end in ends if answer.ends[end - 1] < written]

    def _random(self, state: SurveyState, step: int) -> Random:
        return keyed_random((state["shuffled"]["seed"], Purpose.CURRICULUM), state["rounds"], step)
