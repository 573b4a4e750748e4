"""Checks of a method that compares answers."""

from math import inf

from groupwise.data import Surrogate
from groupwise.objective import ImplicitRewardSurrogate

WEIGHTS = ("desirable", "undesirable")


def check_preference(surrogate: Surrogate) -> None:
    """Refuse a preference whose beta or weights have no gradient, or the reverse one. Raises `ValueError`."""
    beta = getattr(surrogate, "beta", 1.0) if isinstance(surrogate, ImplicitRewardSurrogate) else 1.0
    if not 0 < beta < inf:
        why = "the loss learns the reverse of the preferences" if beta < 0 else "the loss learns no preference"
        raise ValueError(f"beta is {beta}: {why}\nuse a number above 0, such as 0.1")
    weights = {name: getattr(surrogate, name, 1.0) for name in WEIGHTS}
    for name, weight in weights.items():
        if not 0 <= weight < inf:
            raise ValueError(f"{name} is {weight}: it weighs an answer\nuse a number of at least 0, such as 1.0")
    if not any(weights.values()):
        raise ValueError(f"{' and '.join(WEIGHTS)} are 0: no answer teaches\nuse a number above 0, such as 1.0")
