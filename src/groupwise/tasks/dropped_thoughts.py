"""`DroppedThoughts`: empties the reasoning in some demonstrations, so that the policy can learn to skip it (TON)."""

from dataclasses import dataclass

from groupwise.models import RandomPurpose, uniform

__all__ = ["DroppedThoughts"]

EMPTY = "\n\n"
"""The text that replaces the reasoning between its tags."""


@dataclass(frozen=True, slots=True)
class DroppedThoughts:
    """Empties the reasoning in a share of the demonstrations. TON, arXiv:2505.16854.

    A thought is the text between the first `thought_start` and the next `thought_end`. Without `thought_start` it is
    the text before the first `thought_end`. Which rows lose theirs is drawn once, by row, and not again in each epoch.

    >>> DroppedThoughts(1.0, "<think>", "</think>")(0, "<think>2+2</think>4")
    '<think>\\n\\n</think>4'
    >>> DroppedThoughts(1.0, "", "#")(0, "7*5=35;#35")
    '#35'
    """

    dropped_fraction: float
    thought_start: str
    thought_end: str
    seed: int = 0

    def drops(self, row: int) -> bool:
        """Whether to empty the reasoning in the demonstration of this row."""
        return bool(uniform((self.seed, RandomPurpose.DEMONSTRATE), row, 1, 0)[0] < self.dropped_fraction)

    def __call__(self, row: int, answer: str) -> str:
        if not self.drops(row) or not self.has_thought(answer):
            return answer
        before, opens, rest = answer.partition(self.thought_start) if self.thought_start else ("", "", answer)
        return before + opens + EMPTY * bool(opens) + self.thought_end + rest.partition(self.thought_end)[2]

    def has_thought(self, answer: str) -> bool:
        """Whether a text contains reasoning: the opening tag, if one is set, and behind it the closing tag."""
        start = answer.find(self.thought_start) if self.thought_start else 0
        return start >= 0 and self.thought_end in answer[start + len(self.thought_start) :]
