"""The width of a terminal, and lines of prose that are wrapped between words to fit it."""

import os
import textwrap
from contextlib import suppress
from typing import Any

__all__ = ["terminal_width", "wrapped"]


def terminal_width(out: Any, otherwise: int) -> int:
    """The columns of the terminal that the stream `out` is now, or the number `otherwise` for a pipe or a file.

    >>> import io
    >>> terminal_width(io.StringIO(), 116)
    116
    """
    with suppress(OSError, ValueError):
        return os.get_terminal_size(out.fileno()).columns or otherwise
    return otherwise


def wrapped(text: str, columns: int) -> str:
    """The text with its lines of prose wrapped between words; with 0 columns unchanged.

    A line with a run of spaces is a row of a table or a list, and stays.

    >>> print(wrapped("one two three four\\na   1   2   3   4", 12))
    one two
      three four
    a   1   2   3   4
    """
    if not columns:
        return text
    how = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
    fill = textwrap.TextWrapper(columns, **how).fill
    return "\n".join(line if "  " in line.strip() else fill(line) or line for line in text.split("\n"))
