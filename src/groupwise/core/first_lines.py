"""The first lines of many, for the evidence of an error."""

from collections.abc import Sequence

__all__ = ["first_lines"]

SHOWN = 5


def first_lines(lines: Sequence[str]) -> str:
    """The first five lines, and the number of the others.

    >>> first_lines([f"row {i}" for i in range(1, 8)]).splitlines()[-2:]
    ['row 5', 'and 2 more']
    """
    return "\n".join([*lines[:SHOWN], *[f"and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)])
