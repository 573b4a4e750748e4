"""`Synthesised`: a curriculum of the task's problems and of problems that the policy proposed."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, ClassVar, TypedDict

from groupwise.data import Curriculum, Draw, Prompt, Rollout, Task
from groupwise.rollout.attempts import score_of
from groupwise.rollout.curriculum import Shuffled, ShuffledState

__all__ = ["Synthesised"]


class SynthesisedState(TypedDict):
    """State of `Synthesised`: that of `Shuffled`, proposals not drawn yet, mean diversity in all and by kind."""

    shuffled: ShuffledState
    waiting: list[dict[str, Any]]
    usual: float | None
    kinds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Synthesised(Curriculum[SynthesisedState]):
    """Draws prompts in random order; up to the fraction `share` are problems that the policy proposed (`Proposing`).

    The diversity of a problem is the std of its answers' scores. Relative to the usual one it is
    `clip((std - usual) / usual, -1, 1)`; averages per kind of problem are the memo's `diverse`. All averages start at
    their first value and move by `rate`. At most `capacity` problems wait, the newest. Syn-GRPO, arXiv:2511.19343;
    crediting a proposal by its kind is our reading.
    """

    needs_strategy: ClassVar[str] = "Proposing"

    share: float = 0.5
    rate: float = 0.05
    capacity: int = 256

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 < self.rate <= 1 and self.capacity >= 1):
            raise ValueError(f"{self}: needs 0 <= share <= 1, 0 < rate <= 1 and capacity >= 1")

    def init(self, task: Task, seed: int) -> SynthesisedState:
        return SynthesisedState(shuffled=Shuffled().init(task, seed), waiting=[], usual=None, kinds={})

    def draw(self, state: SynthesisedState, task: Task, n: int, group_size: int) -> tuple[SynthesisedState, list[Draw]]:
        new = min(int(self.share * n), len(state["waiting"]))
        proposed, waiting = state["waiting"][:new], state["waiting"][new:]
        shuffled, indices = Shuffled().indices(state["shuffled"], task, n - new)
        memo = {"diverse": dict(state["kinds"])}
        draws = [Draw(0, task[i], group_size, memo) for i in indices]
        draws += [Draw(0, _prompt(p), group_size, {**memo, "kind": p["kind"]}) for p in proposed]
        return {**state, "shuffled": shuffled, "waiting": waiting}, draws

    def observe(self, state: SynthesisedState, rollouts: Sequence[Rollout]) -> SynthesisedState:
        return state

    def end_iteration(self, state: SynthesisedState, rollouts: Sequence[Rollout]) -> SynthesisedState:
        usual, kinds = state["usual"], dict(state["kinds"])
        stds = [_diversity(rollout) for rollout in rollouts]
        for rollout, std in zip(rollouts, stds):
            if usual is not None and (kind := rollout.draw.memo.get("kind")) is not None:
                new = relative(std, usual)
                kinds[kind] = moved(kinds.get(kind, new), new, self.rate)
        mean = fmean(stds) if stds else usual
        usual = mean if usual is None or mean is None else moved(usual, mean, self.rate)
        proposed = [{**p, "writer": r.draw.prompt.id} for r in rollouts for p in r.draw.memo.get("proposals", ())]
        waiting = [*state["waiting"], *proposed][-self.capacity :]
        return {**state, "waiting": waiting, "usual": usual, "kinds": kinds}

    def numbers(self, state: SynthesisedState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        proposed = sum("kind" in rollout.draw.memo for rollout in rollouts)
        return {"waiting": len(state["waiting"]), "proposed": proposed}


def relative(std: float, usual: float) -> float:
    """A diversity of answers, relative to the mean one: from -1 to 1.

    >>> [round(relative(std, 0.25), 6) for std in (0.0, 0.5, 0.254951)]
    [-1.0, 1.0, 0.019804]
    """
    return max(-1.0, min((std - usual) / max(usual, 1e-6), 1.0))


def moved(average: float, value: float, rate: float) -> float:
    return average + rate * (value - average)


def _diversity(rollout: Rollout) -> float:
    return pstdev([score_of(s) for s in rollout.samples if s.role == "answer"] or [0.0])


def _prompt(problem: dict[str, Any]) -> Prompt:
    writer = problem["writer"].partition(" > ")[0]  # the first one: ids do not grow
    return Prompt(f"{writer} > {problem['text']}", tuple(problem["context"]), problem["text"], problem["row"])
