"""The bounds of GSPO in a regime of studies/gspo_regimes.py: the paper's, or ones that are 10 or 100 times as wide.

A bound is a part of a method, as its learning rate is. GSPO takes the bounds with the best mean over the tuning seeds,
each at its own best rate; ties go to the paper's. The other bounds stay in the page's table.
"""

import math
from collections.abc import Mapping, Sequence

from groupwise.certificates.effect_plans import left
from studies.clip_fraction import REWARD
from studies.rates import in_words
from studies.study import LEAST_ACCURACY, Choice, Measured, table

CHOICE = Choice(REWARD, 10)
"""What rates and bounds are chosen by."""
WIDER = ("method.objective.surrogate.low = 3e-3", "method.objective.surrogate.high = 4e-3")
WIDEST = ("method.objective.surrogate.low = 3e-2", "method.objective.surrogate.high = 4e-2")
FACTORS = {"wider": 10.0, "widest": 100.0}
"""How many times as wide as the paper's they are, by the first word of a comparison's name."""


def factor(comparison: str) -> float:
    """How many times the paper's bounds those of GSPO are in a comparison.

    >>> factor("longer"), factor("wider longer")
    (1.0, 10.0)
    """
    return FACTORS.get(comparison.split()[0], 1.0)


def scores(m: Measured, comparisons: Sequence[str]) -> list[float]:
    """The mean of GSPO over the tuning seeds in each comparison, at its rate; NaN before those runs."""
    return [CHOICE.score(m.arms[f"gspo {name}"], m.results) for name in comparisons]


def taken(m: Measured, comparisons: Sequence[str]) -> tuple[str, ...]:
    """The comparison with the best bounds, of those in one regime, then those that the tuning seeds do not tell apart.

    Before the tuning runs the first one, which has the paper's bounds.
    """
    return left(comparisons, scores(m, comparisons), LEAST_ACCURACY) or tuple(comparisons[:1])


def stated_bounds(m: Measured, comparisons: Sequence[str]) -> str:
    """The bounds that GSPO takes, for a sentence."""
    times = factor(taken(m, comparisons)[0])
    return "the paper's bounds" if times == 1 else f"bounds {times:g} times as wide"


def bounds_table(m: Measured, regimes: Mapping[str, Sequence[str]]) -> str:
    """The bounds that GSPO takes in each regime, with others that are left to it; empty before the tuning runs."""
    found = {regime: scores(m, names) for regime, names in regimes.items()}
    if any(math.isnan(x) for xs in found.values() for x in xs):
        return ""
    rows = [
        (regime, in_words([factor(name) for name in taken(m, names)]),
         "; ".join(f"{factor(name):g}: {x:.3f}" for name, x in zip(names, found[regime], strict=True)))
        for regime, names in regimes.items()
    ]  # fmt: skip
    return table(("regime", "bounds of GSPO, times the paper's", "mean over the tuning seeds by bounds"), rows)
