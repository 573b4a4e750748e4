"""A line chart with linear or logarithmic axes, as a small SVG in the style of `benchmarks/curve.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.curve import BOTTOM, HEIGHT, LEFT, RIGHT, STYLE, TOP, WIDTH

MORE = """
  .ours { stroke: #0b57c2 } .theirs { stroke: #b45309 } .thin { stroke-opacity: .45 } .even { stroke: #8b949e }
  @media (prefers-color-scheme: dark) { .ours { stroke: #8ec2ff } .theirs { stroke: #f0a35e } }
"""

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high` with `ticks`; `log` makes it logarithmic."""

    name: str
    ticks: Sequence[float]
    log: bool = False
    low: float = 0.0
    high: float = 1.0

    def share(self, x: float) -> float:
        """The position of a value on the axis, from 0 to 1.

        >>> Axis("size", (), log=True, low=1, high=16).share(4)
        0.5
        """
        if self.log:
            return math.log(x / self.low) / math.log(self.high / self.low)
        return (x - self.low) / (self.high - self.low)


def chart(
    title: str, across: Axis, up: Axis, lines: Sequence[tuple[str, Line]], key: Mapping[str, str], *, low: bool = False
) -> str:
    """The chart as SVG. Each line has a class: `ours`, `theirs`, `even`, or one of them with `thin`.

    `key` is the legend, at the top left, or with `low` at the bottom left.
    """

    def at(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return round(LEFT + wide * across.share(x), 1), round(TOP + high * (1 - up.share(y)), 1)

    parts: list[str] = []
    for y in up.ticks:
        (x0, level), (x1, _) = at(across.low, y), at(across.high, y)
        parts.append(f'<line class="grid" x1="{x0}" y1="{level}" x2="{x1}" y2="{level}"/>')
        parts.append(f'<text x="{x0 - 8}" y="{level + 4}" text-anchor="end">{y:g}</text>')
    floor = HEIGHT - BOTTOM
    parts += [f'<text x="{at(x, up.low)[0]}" y="{floor + 18}" text-anchor="middle">{x:g}</text>' for x in across.ticks]
    middle, half = (LEFT + WIDTH - RIGHT) / 2, (TOP + floor) / 2
    parts.append(f'<text x="{middle}" y="{floor + 36}" text-anchor="middle">{escape(across.name)}</text>')
    parts.append(f'<text transform="translate(14 {half}) rotate(-90)" text-anchor="middle">{escape(up.name)}</text>')
    for kind, line in lines:
        points = " ".join("{},{}".format(*at(x, y)) for x, y in line)
        width = 1.2 if "thin" in kind or kind == "even" else 2.5
        parts.append(f'<polyline class="{kind}" points="{points}" fill="none" stroke-width="{width}"/>')
    for i, (kind, name) in enumerate(key.items()):
        x, y = LEFT + 16, (floor + 4 - 18 * len(key) if low else TOP + 14) + 18 * i
        parts.append(f'<line class="{kind}" x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 32}" y="{y + 4}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    label = escape(title)
    return "\n".join(
        [
            f'{head} aria-label="{label}">',
            f"<title>{label}</title><style>{STYLE}{MORE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a least-squares line through the logarithms.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = [math.log(v) for v in sizes], [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def decades(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5 times powers of ten that enclose both ends.

    >>> decades(0.3, 4)
    [0.2, 0.5, 1.0, 2.0, 5.0]
    """
    ladder = [float(f"{m}e{e}") for e in range(-6, 7) for m in (1, 2, 5)]
    first = max(i for i, step in enumerate(ladder) if step <= low)
    last = min(i for i, step in enumerate(ladder) if step >= high)
    return ladder[first : max(last, first + 1) + 1]
