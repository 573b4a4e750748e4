"""Tables on the terminal."""

import sys
from collections.abc import Iterator, Sequence

from groupwise.core import terminal_width

GAP = "  "


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False, columns: int | None = None) -> list[str]:
    """Lay rows out as lines with aligned columns; with `numbers`, all but the first column are aligned on the right.

    A table that is wider than `columns` characters (default: those of the terminal, if standard output is one) is cut
    into tables below each other, which repeat the first column. 0 never cuts.

    >>> aligned([["seed", "last"], ["0", "0.984"]])
    ['seed  last', '0     0.984']
    >>> aligned([["seed", "last"], ["0", "1"]], numbers=True)
    ['seed  last', '0        1']
    >>> aligned([["seed", "first", "last"], ["0", "0.410", "0.984"]], columns=12)
    ['seed  first', '0     0.410', '', 'seed  last', '0     0.984']
    """
    columns = terminal_width(sys.stdout, 0) if columns is None else columns
    widths = [max(map(len, column)) for column in zip(*rows)]
    align = str.rjust if numbers else str.ljust
    lines: list[str] = []
    for block in blocks(widths, columns):
        cells = [[row[0].ljust(widths[0]), *(align(row[i], widths[i]) for i in block)] for row in rows]
        lines += [*([""] if lines else []), *(GAP.join(row).rstrip() for row in cells)]
    return lines


def blocks(widths: Sequence[int], columns: int) -> Iterator[list[int]]:
    """The columns after the first one, cut into groups that fit beside it; a column that never fits is alone.

    >>> list(blocks([4, 5, 5, 20], 20))
    [[1, 2], [3]]
    """
    block: list[int] = []
    for i in range(1, len(widths)):
        width = widths[0] + sum(len(GAP) + widths[j] for j in (*block, i))
        if columns and block and width > columns:
            yield block
            block = []
        block.append(i)
    yield block
