"""What is right, for TRL's side: the same verdicts that Groupwise's verifiers give. Standard library only."""

import re
from collections.abc import Sequence


def calculator(text: str, answer: int) -> float:
    """1 for an answer that ends in its only `#` and the result, as the task `calculator` has it.

    >>> calculator("7*5=35;#35", 35), calculator("#035", 35), calculator("35", 35), calculator("#3#5", 5)
    (1.0, 1.0, 0.0, 0.0)
    """
    form = re.fullmatch(r"[^#]*#([+-]?)([0-9]+)", text)
    if form is None:
        return 0.0
    size = form[2].lstrip("0") or "0"
    return float((f"-{size}" if form[1] == "-" and size != "0" else size) == str(answer))


def parity(tokens: Sequence[int]) -> float:
    """1 for an even sum of ids: half of all random answers, so that groups are mixed.

    >>> parity([3, 5]), parity([4, 5])
    (1.0, 0.0)
    """
    return float(sum(tokens) % 2 == 0)
