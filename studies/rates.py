"""Learning rates that the tuning seeds do not tell apart, and verdicts between sides that such rates separate.

Two seeds choose a rate, so another one whose mean lies within the smallest difference that counts may be the best as
well: it is *left* to the side, too. Where two sides have different rates although one is left to both, their difference
may be that of the rates. A verdict on it decides only if the sides meet at each rate that is left to both, as well, and
the verdicts agree.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from groupwise.certificates.effect_plans import best
from groupwise.evaluation.seed_verdicts import NOT_SEPARATED, Verdict

T = TypeVar("T")


def left(choices: Sequence[T], scores: Sequence[float], least: float) -> tuple[T, ...]:
    """The best choice, then the others whose score is less than `least` below its own; none while a score is missing.

    >>> left((1e-4, 3e-4, 1e-3), (0.50, 0.51, 0.2), 0.02), left((1e-4, 3e-4), (0.5, float("nan")), 0.02)
    ((0.0003, 0.0001), ())
    """
    taken = best(choices, scores)
    if taken is None:
        return ()
    near = (x for x, score in zip(choices, scores, strict=True) if max(scores) - score < least)
    return (taken, *(x for x in near if x != taken))


def common(one: Sequence[T], other: Sequence[T]) -> list[T]:
    """The rates that are left to both sides, where these take different ones.

    >>> common((3e-4, 1e-4), (1e-4,)), common((3e-4, 1e-4), (3e-4,)), common((3e-4,), (1e-4,))
    ([0.0001], [], [])
    """
    return [] if one[:1] == other[:1] else [rate for rate in one if rate in other]


def in_words(rates: Sequence[float]) -> str:
    """The rate that a side takes, with the others that are left to it.

    >>> in_words((1e-4, 3e-4)), in_words((1e-4,)), in_words(())
    ('0.0001 (or 0.0003)', '0.0001', '')
    """
    taken, *others = (f"{rate:.3g}" for rate in rates) if rates else ("",)
    return f"{taken} (or {', '.join(others)})" if others else taken


def not_separated(word: Verdict, at_common: Iterable[Verdict | None]) -> str:
    """The reason why a verdict decides nothing; empty if it decides.

    `at_common` are the verdicts at the rates that are left to both sides, None for one without its runs.

    >>> not_separated("shown", ["shown", None]), not_separated("shown", []), not_separated("undecided", [None])
    ('rates not separated', '', '')
    """
    return NOT_SEPARATED if word != "undecided" and any(other != word for other in at_common) else ""
