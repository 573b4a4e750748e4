"""Draws a timeline of simulated iterations, as text and as SVG: running requests, learning, publishing."""

from bisect import bisect_right
from itertools import pairwise
from xml.sax.saxutils import escape

from groupwise.planning.simulator import SimulationResult, mean_rows

LEVELS = " ▁▂▃▄▅▆▇█"
"""Characters for a share of running requests, from none to all."""
WIDTH = 70
"""Columns of the text, in characters: with the names of the lanes it fits a terminal of 80."""
SVG_WIDTH, SVG_ROW = 960, 60
"""The size of a lane of the SVG, in pixels."""


def window(simulation: SimulationResult, warm: int) -> tuple[float, float]:
    """The start and the end of the two iterations after the first `warm` ones, in seconds."""
    return simulation.publish_times[warm - 1], simulation.publish_times[warm + 1]


def duration(seconds: float) -> str:
    """Seconds with their unit, in three digits if there are fewer than 100.

    >>> duration(0.5512), duration(1234.5)
    ('0.551 s', '1,234 s')
    """
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def lanes(simulation: SimulationResult, warm: int, columns: int) -> dict[str, list[float]]:
    """Live rows as a share of their largest number, and learning and publishing as shares of time, per column."""
    start, end = window(simulation, warm)
    edges = list(pairwise(start + (end - start) * i / columns for i in range(columns + 1)))
    times = [time for time, _ in simulation.running_requests]
    rows = []
    for left, right in edges:
        first, last = bisect_right(times, left) - 1, bisect_right(times, right)
        rows.append(mean_rows(simulation.running_requests[first:last], left, right))
    most = max(*rows, 1e-9)
    work = {kind: [simulation.busy(kind, *edge) for edge in edges] for kind in ("learn", "publish")}
    return {"rows": [row / most for row in rows], **work}


def timeline_text(simulation: SimulationResult, warm: int) -> list[str]:
    """Two iterations as lines of text, one for each lane."""
    start, end = window(simulation, warm)
    drawn = {
        name: "".join(LEVELS[round(share * (len(LEVELS) - 1))] for share in shares)
        for name, shares in lanes(simulation, warm, WIDTH).items()
    }
    lines = [f"{name:8}|{text}|" for name, text in drawn.items()]
    return [*lines, f"{'':8} {'0':<{WIDTH - 12}}{duration(end - start):>12}"]


def timeline_svg(simulation: SimulationResult, warm: int, title: str) -> str:
    """Two iterations as an SVG image with the same lanes, under a title."""
    start, end = window(simulation, warm)
    shapes = []
    for index, (name, shares) in enumerate(lanes(simulation, warm, SVG_WIDTH // 2).items()):
        base = 40 + (index + 1) * SVG_ROW
        points = " ".join(f"{100 + 2 * i},{base - share * (SVG_ROW - 12):.1f}" for i, share in enumerate(shares))
        shapes.append(f'<text x="8" y="{base}">{name}</text>')
        shapes.append(f'<polygon class="{name}" points="100,{base} {points} {98 + SVG_WIDTH},{base}"/>')
    height = 40 + 3 * SVG_ROW + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SVG_WIDTH + 110} {height}" '
        'font-family="sans-serif" font-size="14">\n'
        "<style>.rows{fill:#0a7c86}.learn{fill:#b3541e}.publish{fill:#5b3f8c}</style>\n"
        f'<text x="8" y="22">{escape(title)}</text>\n' + "\n".join(shapes) + "\n"
        f'<text x="100" y="{height - 8}">0 s</text>\n'
        f'<text x="{98 + SVG_WIDTH}" y="{height - 8}" text-anchor="end">{duration(end - start)}</text>\n</svg>\n'
    )
