"""Checks of a method that compares answers."""

from math import inf

from groupwise.data import Surrogate
from groupwise.objective import ImplicitRewardSurrogate


def check_preference(surrogate: Surrogate) -> None:
    """Refuse a preference whose beta has no gradient, or the reverse one. Raises `ValueError`."""
    beta = getattr(surrogate, "beta", 1.0) if isinstance(surrogate, ImplicitRewardSurrogate) else 1.0
    if not 0 < beta < inf:
        why = "the loss learns the reverse of the preferences" if beta < 0 else "the loss learns no preference"
        raise ValueError(f"beta is {beta}: {why}\nuse a number above 0, such as 0.1")
