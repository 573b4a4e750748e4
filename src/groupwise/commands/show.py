"""What `show`, `diff`, `methods` and `check` print: plain text, the same on a terminal and in a file."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groupwise.config import registry as names
from groupwise.config import text
from groupwise.config.diff import diff
from groupwise.config.reading import together
from groupwise.config.recipe import Recipe
from groupwise.data import GroupwiseError, Usage, visible
from groupwise.methods import Method, Reference, reference_of

WIDTH = 116


def list_methods() -> str:
    """One line a published method."""
    rows = [(name, reference_of(f).arxiv, reference_of(f).paper) for name, f in names.methods().items()]
    return "\n".join(f"{name:<13} arXiv:{arxiv:<11} {paper}" for name, arxiv, paper in rows)


def show(what: str) -> str:
    """A method with its formula, constants, source, differences and proofs; or the long form of a recipe."""
    if what in names.methods():
        return show_method(names.methods()[what])
    return text.write(read(what)).rstrip()


def show_method(function: Callable[..., Method]) -> str:
    reference = reference_of(function)
    sections = (
        (f"{function.__name__}: {reference.paper}, arXiv:{reference.arxiv}", [str(function.__doc__)]),
        ("formula", reference.formula.splitlines()),
        ("constants", text.write(function()).rstrip().splitlines()),
        ("differences", table(differences(reference), WIDTH)),
        ("proofs", list(reference.proofs)),
    )
    return "\n\n".join("\n".join([title, *(f"  {line}".rstrip() for line in lines)]) for title, lines in sections)


def differences(reference: Reference) -> list[tuple[str, str, str, str]]:
    head = ("", "paper", "authors' code and others", "here")
    return [head, *((d.what, d.paper, d.code, d.ours) for d in reference.differences)]


def show_diff(a: str, b: str) -> str:
    """What distinguishes two methods or two recipes; a recipe beside a method is compared by its method."""
    left, right = read(a), read(b)
    if type(left) is not type(right):
        left, right = (x.method if isinstance(x, Recipe) else x for x in (left, right))
    return "\n".join(diff(left, right)) or "no difference"


def show_check(name: str, problems: Sequence[GroupwiseError]) -> str:
    """The errors of `check`, or that there are none."""
    if not problems:
        return f"{visible(name)}: ok"
    return "\n".join(map(str, problems)) + f"\n{visible(name)}: {len(problems)} error{'s'[: len(problems) > 1]}"


def read(what: str) -> Any:
    """A method by its name, a recipe by its file, or that of a run by its directory. Imports no code it may name."""
    if what in names.methods():
        return names.methods()[what]()
    path = Path(what) / "recipe.toml" if Path(what).is_dir() else Path(what)
    if not path.is_file():
        raise Usage(f"{what!r} is neither a method nor a file", fix=names.near(what, names.methods()))
    recipe, problems = text.attempt(path)
    if recipe is None or problems:
        raise together(problems)
    return recipe


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows in columns that share a width, the cells wrapped.

    >>> print("\\n".join(table([("", "paper"), ("clip", "0.2 and 0.28")], 20)))
          paper
    clip  0.2 and 0.28
    """
    count = len(rows[0])
    longest = [max(len(row[c]) for row in rows) for c in range(count)]
    room, widths = width - 2 * (count - 1), [0] * count
    for left, c in enumerate(sorted(range(count), key=lambda c: longest[c])):
        widths[c] = min(longest[c], room // (count - left))
        room -= widths[c]
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, max(w, 1)) or [""] for cell, w in zip(row, widths)]
        for i in range(max(map(len, cells))):
            lines.append(
                "  ".join(f"{cell[i] if i < len(cell) else '':<{w}}" for cell, w in zip(cells, widths)).rstrip()
            )
    return lines
