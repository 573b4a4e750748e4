"""The first of many lines or items, for messages."""

from collections.abc import Sequence
from typing import Any

__all__ = ["first_items", "first_lines"]

SHOWN = 5


def first_lines(lines: Sequence[str]) -> str:
    """The first five lines, and the number of the others.

    >>> first_lines([f"row {i}" for i in range(1, 8)]).splitlines()[-2:]
    ['row 5', 'and 2 more']
    """
    return "\n".join([*lines[:SHOWN], *[f"and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)])


def first_items(items: Sequence[Any]) -> str:
    """The first five items in a line, and the number of the others.

    >>> first_items([0, 10]), first_items(range(7))
    ('0, 10', '0, 1, 2, 3, 4 and 2 more')
    """
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(str, items[:SHOWN])) + more
