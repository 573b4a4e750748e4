"""`GatedTurns`: stops the conversations of a group early if the model takes similar actions in all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from groupwise.data import Draw, Finish, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.dialogue import Dialogue, dialogue_until, judged
from groupwise.rollout.likeness import edit_distance
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, UNWORDED, Forms

__all__ = ["GatedTurns"]


@dataclass(frozen=True, slots=True)
class GatedTurns(Strategy):
    """Conversations as in `Turns`. A group stops after `after` turns if its actions differ by less than `below`.

    The difference is the mean edit distance of two sequences of actions, as a share of `after`; an ended conversation
    counts as repeating one action that occurs nowhere else. A stopped group is dropped with the cause `alike`: such
    groups mostly end with equal rewards. An action is a turn's text, from the last `marker` on if there is one.
    Selective Rollout, 2026.
    """

    needs_environment: ClassVar[bool] = True

    forms: ClassVar[dict[str, Forms]] = {
        "marker": Forms("", "Action:", "zhiyuanZhai20/selective-rollout, src/prompts.py, ba86cdc")
    }

    most: int = 30
    after: int = 10
    below: float = 0.12
    marker: str = AUTO

    def __post_init__(self) -> None:
        if not (1 <= self.after < self.most and self.below >= 0):
            raise ValueError(f"{self}: needs 1 <= after < most (in turns) and below >= 0 (a difference of actions)")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert self.marker != AUTO, UNWORDED
        starts = sampler.start(draw.prompt.context, draw.n)
        first = (dialogue_until(Dialogue(s), sampler, s, most=self.most, turns=self.after) for s in starts)
        dialogues = await together(first)
        if draw.n > 1 and divergence([actions(t.sample, self.marker) for t in dialogues], self.after) < self.below:
            stopped = (t.sample if t.ended else t.sample.with_finish(Finish.cut) for t in dialogues)
            return Rollout(draw, tuple(stopped), selected=(False,) * draw.n, cause="alike")
        rest = (dialogue_until(t, sampler, start, most=self.most) for t, start in zip(dialogues, starts))
        return Rollout(draw, await judged(await together(rest), sampler))


def actions(sample: Sample, marker: str = "") -> list[str]:
    """The action in each turn of the model: its text, or the part from the last `marker` on if there is one."""
    ends = (0, *sample.ends)
    texts = [sample.text[ends[first] : ends[last]] for first, last in sample.turns]
    return [(text.rpartition(marker)[2] if marker else text).strip() for text in texts]


def divergence(sequences: Sequence[Sequence[str]], length: int) -> float:
    """The mean edit distance over all pairs of sequences, cut or padded to `length`, divided by `length`.

    >>> round(divergence(["abcde", "abxde", "pqrst", "abc"], 5), 6)
    0.7
    """
    padded = [[*sequence[:length], *[None] * (length - len(sequence))] for sequence in sequences]
    pairs = list(combinations(padded, 2))
    return sum(edit_distance(a, b) for a, b in pairs) / length / max(len(pairs), 1)
