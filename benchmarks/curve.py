"""Draw held-out accuracy over iterations as a small SVG: each run thin, their mean thick. Standard library only.

`make seeds` uses it. On its own:

    python benchmarks/curve.py docs/curve.svg runs/seeds/seed-*
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

METRIC = "eval/accuracy_greedy"
WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 44

# The picture has its own background, so it stays readable when page and browser disagree about dark mode.
STYLE = """
  rect { fill: #ffffff } text { fill: #3d444d; font: 13px system-ui, sans-serif } .grid { stroke: #d8dee4 }
  .run { stroke: #5a8dd6; stroke-opacity: .55 } .mean { stroke: #0b57c2 }
  @media (prefers-color-scheme: dark) {
    rect { fill: #0d1117 } text { fill: #c9d1d9 } .grid { stroke: #30363d }
    .run { stroke: #6ea8fe; stroke-opacity: .5 } .mean { stroke: #8ec2ff }
  }
"""

Curve = list[tuple[int, float]]


def evaluations(run: Path) -> Curve:
    """(iteration, greedy held-out accuracy) for each evaluation of a run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["iteration"], line[METRIC]) for line in lines if line.get(METRIC) is not None]


def mean(curves: Sequence[Curve]) -> Curve:
    """The mean of the curves, at their common iterations.

    >>> mean([[(0, 0.25), (10, 0.5)], [(0, 0.75), (10, 1.0), (20, 1.0)]])
    [(0, 0.5), (10, 0.75)]
    """
    tables = [dict(curve) for curve in curves]
    common = sorted(set.intersection(*map(set, tables)))
    return [(x, sum(table[x] for table in tables) / len(tables)) for x in common]


def draw(curves: Sequence[Curve]) -> str:
    """The SVG: accuracy from 0 to 1 over iterations."""
    last = max(1, max(x for curve in curves for x, _ in curve))

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return round(LEFT + across * x / last, 1), round(TOP + up * (1 - y), 1)

    def line(curve: Curve, kind: str, width: float) -> str:
        points = " ".join("{},{}".format(*at(x, y)) for x, y in curve)
        return f'<polyline class="{kind}" points="{points}" fill="none" stroke-width="{width}"/>'

    parts: list[str] = []
    for tenths in range(0, 11, 2):
        (x0, y), (x1, _) = at(0, tenths / 10), at(last, tenths / 10)
        parts.append(f'<line class="grid" x1="{x0}" y1="{y}" x2="{x1}" y2="{y}"/>')
        parts.append(f'<text x="{x0 - 8}" y="{y + 4}" text-anchor="end">{tenths / 10:.1f}</text>')
    for x in sorted({round(last * i / 4) for i in range(5)}):
        px, py = at(x, 0)
        parts.append(f'<text x="{px}" y="{py + 18}" text-anchor="middle">{x}</text>')
    middle, floor = at(last / 2, 0)
    parts.append(f'<text x="{middle}" y="{floor + 36}" text-anchor="middle">iteration</text>')
    half = at(0, 0.5)[1]
    parts.append(
        f'<text transform="translate(16 {half}) rotate(-90)" text-anchor="middle">held-out accuracy, greedy</text>'
    )
    parts += [line(curve, "run", 1.2) for curve in curves]
    parts.append(line(mean(curves), "mean", 3))
    title = f"Greedy held-out accuracy over {last} iterations: {len(curves)} seeds and their mean"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw held-out accuracy over iterations from run directories.")
    parser.add_argument("svg", type=Path)
    parser.add_argument("run", type=Path, nargs="+")
    a = parser.parse_args()
    a.svg.write_text(draw([evaluations(run) for run in a.run]))
    print(a.svg)


if __name__ == "__main__":
    main()
