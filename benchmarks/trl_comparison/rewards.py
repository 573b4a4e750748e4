"""Reward functions for TRL, equal to the verdicts of Groupwise's verifiers. Standard library only."""

import re
from collections.abc import Sequence


def calculator(text: str, answer: int) -> float:
    """1 if the answer ends in its only `#` and the result, like the verifier of the task `calculator`.

    >>> calculator("7*5=35;#35", 35), calculator("#035", 35), calculator("35", 35), calculator("#3#5", 5)
    (1.0, 1.0, 0.0, 0.0)
    """
    match = re.fullmatch(r"[^#]*#([+-]?)([0-9]+)", text)
    if match is None:
        return 0.0
    digits = match[2].lstrip("0") or "0"
    return float((f"-{digits}" if match[1] == "-" and digits != "0" else digits) == str(answer))


def parity(tokens: Sequence[int]) -> float:
    """1 for an even sum of ids: half of all random answers, so groups have both outcomes.

    >>> parity([3, 5]), parity([4, 5])
    (1.0, 0.0)
    """
    return float(sum(tokens) % 2 == 0)
