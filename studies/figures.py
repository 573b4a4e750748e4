"""The figures of the studies: SVG files by matplotlib, readable on a light and on a dark page."""

import html
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from groupwise.core import MissingRequirement
from studies.study import Estimate

INK, GRID, PAPER = "#101010", "#202020", "#303030"
COLOURS = ("#400001", "#400002", "#400003", "#400004", "#400005")
"""Stand-ins that matplotlib writes into the file. `THEME` gives each its colour in light and in dark mode."""
THEME = {
    INK: ("#3d444d", "#c9d1d9"),
    GRID: ("#d8dee4", "#30363d"),
    PAPER: ("#ffffff", "#0d1117"),
    COLOURS[0]: ("#c2410c", "#fb923c"),
    COLOURS[1]: ("#0b57c2", "#8ec2ff"),
    COLOURS[2]: ("#15803d", "#6ee7a0"),
    COLOURS[3]: ("#7e22ce", "#d0a4ff"),
    COLOURS[4]: ("#57606a", "#9aa4af"),
}
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "groupwise", "font.family": "sans-serif", "font.size": 10,
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID,
    "axes.facecolor": PAPER, "figure.facecolor": PAPER, "legend.frameon": False, "axes.titlesize": "medium",
}  # fmt: skip
LETTERS, COLUMN = 11, 750
"""The smallest letters of a figure, in pixels, where a page shows it in a column of this many pixels."""


def need_matplotlib() -> None:
    """Raise `MissingRequirement` without matplotlib."""
    if find_spec("matplotlib") is None:
        raise MissingRequirement("the figures need matplotlib", fix="pip install 'groupwise[studies]'")


def new_figure(panels: int) -> tuple[Any, Sequence[Any]]:
    """A figure with some panels, in rows of at most four."""
    need_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    columns = next(n for n in (4, 3, 2, 1) if panels % n == 0)
    rows = panels // columns
    shrinks = 3.3 * columns * 96 / COLUMN  # 96 pixels are an inch, and 72 points
    matplotlib.rcParams.update({**SETTINGS, "font.size": max(10, LETTERS * shrinks * 72 / 96)})
    figure = Figure(figsize=(3.3 * columns, 2.9 * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def line(axes: Any, series: Sequence[tuple[int, Estimate]], colour: int, label: str, *, dashed: bool = False) -> None:
    """The mean over seeds as a thick line, and each seed as a thin one."""
    at = [i for i, _ in series]
    style = {"color": COLOURS[colour], "linestyle": "--" if dashed else "-"}
    for one in zip(*(x.values for _, x in series), strict=True):
        axes.plot(at, one, linewidth=0.8, alpha=0.45, **style)
    axes.plot(at, [x.mean for _, x in series], label=label, linewidth=2.4, **style)


def write_svg(figure: Any, alt: str, path: Path) -> None:
    """Write a figure with its alternative text. The colours follow the reader's light or dark mode."""
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(themed(text.getvalue(), alt), encoding="utf-8")


def themed(svg: str, alt: str, theme: Mapping[str, tuple[str, str]] = THEME) -> str:
    """The SVG with an alternative text, and with variables in place of the stand-ins for colours.

    >>> themed('<svg a="b"><path style="fill: #101010"/></svg>', "A line").partition("</style>")[2]
    '<path style="fill: var(--c0)"/></svg>'
    """
    names = {colour: f"--c{i}" for i, colour in enumerate(theme)}
    for colour, name in names.items():
        svg = svg.replace(colour, f"var({name})")
    light, dark = ("".join(f"{names[c]}:{pair[i]};" for c, pair in theme.items()) for i in (0, 1))
    style = f"svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
    label = html.escape(alt)
    head = f'role="img" aria-label="{label}"><title>{label}</title><style>{style}</style>'
    svg = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
    return re.sub(r"(<svg[^>]*?)\s*>", rf"\1 {head}", svg, count=1)
