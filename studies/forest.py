"""A forest plot as SVG: each claim with its difference, its interval and the verdict.

The difference counts to the right where the paper claims it. Its unit is the smallest difference that counts, since the
own units of rows differ: between -1 and 1, in the shaded band, nothing counts. An interval that reaches beyond `REACH`
ends in an arrow.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from studies.figures import COLOURS, GRID, INK, PAPER, themed

ORANGE, BLUE, GREEN, _, GREY = COLOURS
VERDICTS = {"shown": GREEN, "opposite": ORANGE, "absent": GREY, "undecided": BLUE}
"""The verdicts in the order of the plot, with their colours."""
WIDTH, LINE, HEAD = 880, 22, 34
CLAIM, LEFT, RIGHT, NUMBER = 100, 400, 622, 640
"""Where columns begin, in pixels: claims, the plot with its end, numbers. Verdicts begin at the left edge."""
REACH, ARROW = 5, 7
"""How many smallest differences that count the plot has on each side, and the length of an arrow in pixels."""
TICKS = (-5, -3, -1, 0, 1, 3, 5)
SCALE = "unit: the smallest difference that counts (shaded up to 1); an arrow goes on beyond the plot"
SIZE = 13
"""The letters, in pixels of the file: 11 pixels remain when a page shows it at 750."""
NOTES = {
    "†": "the methods have run at one learning rate that they share: undecided until each has its own",
    "*": "a run of this claim was made by an earlier version of the code",
}
"""Marks behind a claim, and what they mean."""


@dataclass(frozen=True, slots=True)
class Row:
    """A claim with its verdict, and with the low end, the middle and the high end of its interval, None without runs.

    These are above 0 as the paper claims, in smallest differences that count. `number` is the difference in words,
    `marks` are keys of `NOTES`.
    """

    claim: str
    interval: tuple[float, float, float] | None
    verdict: str
    number: str = ""
    marks: str = ""


def forest(rows: Sequence[Row], alt: str) -> str:
    """The plot, with the rows of a verdict together, in the order of `VERDICTS`.

    >>> svg = forest([Row("answers grow", (1.0, 2.0, 3.0), "shown", "4 (2 to 6) tokens")], "One claim")
    >>> svg.count("<circle"), "answers grow" in svg, "var(--c5)" in svg
    (1, True, True)
    """
    ordered = [row for verdict in VERDICTS for row in rows if row.verdict == verdict]
    notes = [SCALE, *(f"{mark} {note}" for mark, note in NOTES.items() if any(mark in row.marks for row in rows))]
    bottom = HEAD + LINE * len(ordered)
    height = bottom + LINE * (len(notes) + 1) + 10
    parts = [f'<rect width="{WIDTH}" height="{height}" style="fill:{PAPER}"/>', _band(bottom), *_head(bottom)]
    for i, row in enumerate(ordered):
        middle = HEAD + LINE * i + LINE / 2
        is_first = i == 0 or ordered[i - 1].verdict != row.verdict
        parts += [_separator(middle - LINE / 2)] * is_first + _row(row, middle)
    parts += [_text(_at(x), bottom + LINE - 6, f"{x:+d}" if x else "0", anchor="middle") for x in TICKS]
    parts += [_text(CLAIM, bottom + LINE * (i + 2) - 6, note) for i, note in enumerate(notes)]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = f'font-family="sans-serif" font-size="{SIZE}"'
    return themed(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n' + "\n".join(parts) + "\n</svg>\n", alt)


def _band(bottom: float) -> str:
    """Where differences are that do not count."""
    left, right = _at(-1), _at(1)
    return f'<rect x="{left:.1f}" y="{HEAD}" width="{right - left:.1f}" height="{bottom - HEAD}" style="fill:{GRID}"/>'


def _head(bottom: float) -> list[str]:
    """The names of the columns, and the line of no difference."""
    zero = _at(0)
    return [
        _text(8, 22, "verdict"),
        _text(CLAIM, 22, "claim"),
        _text(zero - 8, 22, "◂ against", anchor="end"),
        _text(zero + 8, 22, "as claimed ▸"),
        _text(NUMBER, 22, "difference, interval"),
        _line(zero, HEAD, zero, bottom, INK, 1),
    ]


def _row(row: Row, y: float) -> list[str]:
    """The mark and the word of the verdict, the claim, the interval with its middle, and the number."""
    return [
        _mark(row.verdict, 14, y),
        _text(26, y + 4.5, row.verdict, colour=VERDICTS[row.verdict]),
        _text(CLAIM, y + 4.5, f"{row.claim} {row.marks}".strip()),
        *(_interval(row.interval, row.verdict, y) if row.interval else []),
        _text(NUMBER, y + 4.5, row.number),
    ]


def _interval(interval: tuple[float, float, float], verdict: str, y: float) -> list[str]:
    """The interval with its middle; an arrow at each edge of the plot beyond which it reaches."""
    low, middle, high = interval
    arrows = [_arrow(side, y, VERDICTS[verdict]) for side, end in ((-1, -low), (1, high)) if end > REACH]
    inner = REACH - 2 * REACH * ARROW / (RIGHT - LEFT)
    line = _line(_at(low, inner), y, _at(high, inner), y, VERDICTS[verdict], 2.4)
    return [line, *arrows, _mark(verdict, _at(middle, inner - 0.25), y)]


def _at(x: float, reach: float = REACH) -> float:
    """Where a number of smallest differences lies in the plot, at most so many of them from the middle."""
    return (LEFT + RIGHT) / 2 + (RIGHT - LEFT) / 2 / REACH * min(max(x, -reach), reach)


def _arrow(side: int, y: float, colour: str) -> str:
    tip = _at(side * REACH)
    base = tip - side * ARROW
    return f'<path d="M{tip:.1f} {y:.1f} L{base:.1f} {y - 5:.1f} L{base:.1f} {y + 5:.1f} Z" style="fill:{colour}"/>'


def _mark(verdict: str, x: float, y: float) -> str:
    """A shape for each verdict, since some readers do not see its colour."""
    style = f'style="fill:{VERDICTS[verdict]}"'
    if verdict == "shown":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.6" {style}/>'
    if verdict == "undecided":
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" style="fill:{PAPER};stroke:{VERDICTS[verdict]};stroke-width:2"/>'
        )
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if verdict == "opposite" else ""
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"{turned} {style}/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} style="stroke:{colour};stroke-width:{width}"/>'


def _separator(y: float) -> str:
    return _line(8, y, WIDTH - 8, y, GRID, 1)


def _text(x: float, y: float, text: str, *, colour: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:{colour}">{html.escape(text)}</text>'
