"""Learning rates that the tuning seeds do not tell apart, and verdicts between sides that such rates separate.

Two seeds choose a rate, so another one whose mean lies within the smallest difference that counts may be the best as
well: it is *left* to the side, too. Where two sides have different rates although one is left to both, their difference
may be that of the rates. A verdict on it decides only if the sides meet at each rate that is left to both, as well, and
the verdicts agree.
"""

from collections.abc import Iterable, Sequence

from groupwise.evaluation.seed_verdicts import NOT_SEPARATED, Verdict


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
