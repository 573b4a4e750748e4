"""`ThompsonSampling`: a curriculum that draws the prompts from which the policy can learn the most."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal, TypedDict

from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.models import Purpose, keyed_random
from groupwise.rollout.attempts import graded
from groupwise.rollout.curriculum import check_prompts

__all__ = ["ThompsonSampling"]

Counts = list[float]
"""Decayed numbers of correct and of other answers to a prompt."""


class ThompsonState(TypedDict):
    """State of `ThompsonSampling`: counts by the prompt's index; prompts without counts were never drawn."""

    seed: int
    drawn: int
    iteration: list[int]
    """The prompts drawn in the current iteration; a refill round draws others."""
    counts: dict[str, Counts]


@dataclass(frozen=True, slots=True)
class ThompsonSampling(Curriculum[ThompsonState]):
    """The prompts with the largest `p (1 - p)^2`, where p is drawn from a posterior of the prompt's success rate. VADE.

    The posterior is `Beta(1 + correct, 1 + others)`. After an iteration the counts of its prompts are multiplied by
    `fast` before their answers are added, and those of all other prompts by `slow`. So estimates follow the policy, and
    a prompt that is solved today returns later. arXiv:2511.18902. `value = "variance"` ranks by `p (1 - p)`;
    `sampled = False` takes the posterior's mean as p.
    """

    learns_prompts: ClassVar[bool] = True

    fast: float = 0.2
    slow: float = 0.999
    value: Literal["gain", "variance"] = "gain"
    sampled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.fast <= self.slow <= 1:
            raise ValueError(f"{self}: the decays are out of range\ntake 0 <= fast <= slow <= 1")

    def init(self, task: Task, seed: int) -> ThompsonState:
        return ThompsonState(seed=seed, drawn=0, iteration=[], counts={})

    def draw(self, state: ThompsonState, task: Task, n: int, group_size: int) -> tuple[ThompsonState, list[Draw]]:
        check_prompts(task)
        random = keyed_random((state["seed"], Purpose.CURRICULUM), state["drawn"])
        worth = [self.worth(self._rate(state["counts"].get(str(i), [0.0, 0.0]), random)) for i in range(len(task))]
        drawn = set(state["iteration"])
        chosen = sorted((i for i in range(len(task)) if i not in drawn), key=lambda i: -worth[i])[:n]
        draws = [Draw(0, task[i], group_size, memo={"index": i}) for i in chosen]
        return {**state, "drawn": state["drawn"] + n, "iteration": [*state["iteration"], *chosen]}, draws

    def observe(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> ThompsonState:
        return state

    def end_iteration(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> ThompsonState:
        counts = {key: [self.slow * x for x in pair] for key, pair in state["counts"].items()}
        for rollout in rollouts:
            key, answers = str(rollout.draw.memo["index"]), graded(rollout.samples)
            correct, others = (self.fast * x for x in state["counts"].get(key, [0.0, 0.0]))
            counts[key] = [correct + sum(answers), others + len(answers) - sum(answers)]
        return {**state, "iteration": [], "counts": counts}

    def numbers(self, state: ThompsonState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"known": len(state["counts"])}

    def _rate(self, counts: Counts, random: Random) -> float:
        a, b = (1 + x for x in counts)
        return random.betavariate(a, b) if self.sampled else a / (a + b)

    def worth(self, p: float) -> float:
        """The value of training on a prompt with the pass rate p.

        >>> round(ThompsonSampling().worth(0.5), 6)
        0.125
        """
        return p * (1 - p) ** (2 if self.value == "gain" else 1)
