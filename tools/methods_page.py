"""Write docs/methods.md from the methods' values: `python -m tools.methods_page docs/methods.md`."""

import sys
from collections.abc import Callable
from pathlib import Path

from groupwise.commands.show import differences
from groupwise.config import text
from groupwise.config.registry import methods
from groupwise.methods import Method, reference_of


def methods_page() -> str:
    """The page of all published methods, as Markdown."""
    known = methods()
    lines = [
        "# Methods",
        "",
        "`make docs` writes this page from the values, and a test compares them. `groupwise show NAME` prints one",
        "method, and `groupwise diff A B` the differences between two. *Recalled* marks entries that were not read",
        "again in their source; *inferred* marks entries without a source.",
        "",
        "| method | paper | in one sentence |",
        "|---|---|---|",
        *(_row(known[name]) for name in known),
        "",
        *(line for name in known for line in _section(known[name])),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(function: Callable[..., Method]) -> str:
    reference = reference_of(function)
    link = f"[{reference.paper}](https://arxiv.org/abs/{reference.arxiv})"
    return f"| [{function.__name__}](#{function.__name__}) | {link} | {_cell(str(function.__doc__))} |"


def _section(function: Callable[..., Method]) -> list[str]:
    reference, name = reference_of(function), function.__name__
    head, *rows = differences(reference)
    return [
        f"## {name}",
        "",
        f"{function.__doc__} [{reference.paper}](https://arxiv.org/abs/{reference.arxiv}).",
        "",
        "```text",
        *reference.formula.splitlines(),
        "```",
        "",
        f"| {' | '.join(head)} |",
        "|---|---|---|---|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
        f"All its parts and constants (`src/groupwise/methods/{name}.py`):",
        "",
        "```toml",
        *text.write(function()).rstrip().splitlines(),
        "```",
        "",
        "Tests:",
        "",
        *(f"- `{proof}`" for proof in reference.proofs),
        "",
    ]


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(methods_page(), encoding="utf-8")
