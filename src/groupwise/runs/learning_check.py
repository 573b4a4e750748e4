"""Whether a run learns: then falling entropy and groups of equal rewards are no alarm."""

from collections.abc import Mapping
from typing import Any

from groupwise.data import REWARD

REWARD_STD, CORRECT = "reward_std", "outcome/correct"
NEEDED = (REWARD, REWARD_STD, CORRECT)
"""The metrics of an iteration by which this file decides."""
ROSE = 0.25
"""A reward rose clearly if it rose by this many standard deviations of the rewards within a group."""
SOLVED = 0.9
"""The share of correct answers from which a run that learned counts as having solved its task."""

Line = Mapping[str, Any]
"""The metrics of an iteration."""


def has_risen(before: Line, now: Line) -> bool:
    """Whether the mean reward rose clearly from one iteration to another.

    >>> has_risen({"reward": 0.4, "reward_std": 0.4}, {"reward": 0.55})
    True
    >>> has_risen({"reward": 0.4, "reward_std": 0.4}, {"reward": 0.45})
    False
    """
    if any(line.get(REWARD) is None for line in (before, now)):
        return False
    return now[REWARD] - before[REWARD] > ROSE * (before.get(REWARD_STD) or 0.0)


def has_solved(start: Line, now: Line) -> bool:
    """Whether nearly all answers are correct, which they were not at the start of the run."""
    return SOLVED <= (now.get(CORRECT) or 0.0) <= 1.0 and has_risen(start, now)


def is_learning(start: Line, before: Line, now: Line) -> bool:
    """Whether entropy that fell from `before` to `now` did so because the policy learns. `start` begins the run."""
    return has_risen(before, now) or has_solved(start, now)
