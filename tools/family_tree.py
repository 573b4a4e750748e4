"""The family tree of the methods by their diffs, as an SVG: `python -m tools.family_tree docs/atlas.svg`."""

import sys
from html import escape
from pathlib import Path

from groupwise.certificates.certificate import Certificate, describe
from groupwise.certificates.method_lineage import changed, family_index, walk
from groupwise.config.registry import methods
from groupwise.methods.families import FAMILIES

WIDTH, ROW, LEFT, TOP = 920, 21, 24, 58
INDENT, YEARS, FIELDS = 26, 300, 350
"""Pixels of a level of the tree, and the columns of the year and of the changed fields."""
LETTER, GAP = 8, 36
"""The legend: pixels that a letter needs, and pixels around a family's name."""
MOST = 90
"""The most characters of the changed fields."""
STYLE = """\
<style>
  rect { fill: #ffffff } text { fill: #24292f; font: 13px system-ui, sans-serif } .soft { fill: #57606a; font-size: 12px }
  .name { font-weight: 600 } path { fill: none; stroke: #c4cad1; stroke-width: 1.2 }
  .f0 { fill: #57534e } .f1 { fill: #0068a8 } .f2 { fill: #00805c } .f3 { fill: #9a4a86 } .f4 { fill: #c9540a } .f5 { fill: #8a6d00 }
  .f6 { fill: #b3314c } .f7 { fill: #4b52b8 }
  @media (prefers-color-scheme: dark) {
    rect { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9198a1 } path { stroke: #3d444d }
    .f0 { fill: #b5b0a8 } .f1 { fill: #5cb3ee } .f2 { fill: #3fc79b } .f3 { fill: #d78fc3 } .f4 { fill: #f2924a } .f5 { fill: #dcbf4d }
    .f6 { fill: #f08a9c } .f7 { fill: #a3a8f5 }
  }
</style>"""  # noqa: E501
SHAPES = (
    '<circle class="f0" cx="{x}" cy="{y}" r="5"/>',
    '<path class="f1" style="stroke:none" d="M{x} {y}m-5.5 5l5.5 -10l5.5 10z"/>',
    '<path class="f2" style="stroke:none" d="M{x} {y}m-4.5 -4.5h9v9h-9z"/>',
    '<path class="f3" style="stroke:none" d="M{x} {y}m-6 0l6 -6l6 6l-6 6z"/>',
    '<path class="f4" style="stroke:none" d="M{x} {y}m-5.5 -5l5.5 10l5.5 -10z"/>',
    '<path class="f5" style="stroke:none" d="M{x} {y}m-5.5 -1.8h3.7v-3.7h3.6v3.7h3.7v3.6h-3.7v3.7h-3.6v-3.7h-3.7z"/>',
    '<path class="f6" style="stroke:none" d="M{x} {y}m-6 -3.5h12v7h-12z"/>',
    '<path class="f7" style="stroke:none" d="M{x} {y}m-5.5 -5h11l-3 5l3 5h-11l3 -5z"/>',
)
"""The mark of each family, so that a family is not known by its colour alone."""


def family_tree() -> str:
    """The SVG: a row for each method, below the one that it changes, with its year and the fields that it changes."""
    rows = list(walk(describe(list(methods()))))
    cell = {c.name: (depth, i) for i, (depth, c) in enumerate(rows)}
    height = TOP + ROW * len(rows) + 12
    title = f"{len(rows)} methods, each below the one that it changes, with the fields that it changes"
    lines = [branch(cell[c.parent], cell[c.name]) for _, c in rows if c.parent in cell]
    names = [line for i, (depth, c) in enumerate(rows) for line in row(c, depth, i)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    frame = f'<title>{title}</title>\n{STYLE}\n<rect width="{WIDTH}" height="{height}" rx="6"/>'
    return "\n".join([head, frame, *legend(), *lines, *names, "</svg>\n"])


def legend() -> list[str]:
    """The marks of the families, and the heads of the columns."""
    starts = [LEFT + sum(GAP + LETTER * len(family) for family in FAMILIES[:i]) for i in range(len(FAMILIES))]
    marks = [mark(i, x, 20) for i, x in enumerate(starts)]
    words = [f'<text x="{x + 12}" y="24">{family}</text>' for x, family in zip(starts, FAMILIES)]
    heads = f'<text class="soft" x="{YEARS}" y="48">year</text><text class="soft" x="{FIELDS}" y="48">changes</text>'
    return [*marks, *words, heads]


def mark(family: int, x: float, y: float) -> str:
    """The mark of a family."""
    return SHAPES[family].format(x=x, y=y)


def row(c: Certificate, depth: int, i: int) -> list[str]:
    """The mark, name, year and changed fields of a method."""
    x, y = LEFT + INDENT * depth, TOP + ROW * i + ROW / 2
    fields = ", ".join(changed(c))
    shown = fields if len(fields) <= MOST else f"{fields[: MOST - 1]}…"
    return [
        mark(family_index(c), x, y),
        f'<text class="name" x="{x + 12}" y="{y + 4.5}"><title>{escape(c.summary)}</title>{escape(c.name)}</text>',
        f'<text class="soft" x="{YEARS}" y="{y + 4}">{c.year}</text>',
        f'<text class="soft" x="{FIELDS}" y="{y + 4}">{escape(shown)}</text>',
    ]


def branch(parent: tuple[int, int], child: tuple[int, int]) -> str:
    """The line from a method to one that changes it."""
    (depth, i), (_, j) = parent, child
    x, y = LEFT + INDENT * depth, TOP + ROW * i + ROW / 2 + 8
    return f'<path d="M{x} {y}V{TOP + ROW * j + ROW / 2}h{INDENT - 9}"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(family_tree(), encoding="utf-8")
