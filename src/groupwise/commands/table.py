"""Tables on the terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Lay rows out as lines with aligned columns; with `numbers`, all but the first column are aligned on the right.

    >>> aligned([["seed", "last"], ["0", "0.984"]])
    ['seed  last', '0     0.984']
    >>> aligned([["seed", "last"], ["0", "1"]], numbers=True)
    ['seed  last', '0        1']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    align = str.rjust if numbers else str.ljust
    return ["  ".join([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])]).rstrip() for row in rows]
