"""Write docs/methods.md, the family tree, and the changed fields: `python -m tools.methods_page docs/methods.md`."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tools.family_tree import family_tree

from groupwise import methods as room
from groupwise.commands.methods import CHANGES
from groupwise.commands.show import auto_texts, differences
from groupwise.config import recipe_toml
from groupwise.config.diff import changed_fields
from groupwise.config.registry import methods
from groupwise.methods import Method, reference_of
from groupwise.methods.families import FAMILIES, method_family, subject_of

assert room.__file__ is not None
TREE = "atlas.svg"
"""The picture of the family tree, beside the page."""
CHANGES_FILE = Path(room.__file__).with_name(CHANGES)


def methods_page() -> str:
    """The page of all published methods, as Markdown, with a chapter for each family."""
    lines = [
        "# Methods",
        "",
        "`make docs` writes this page from the values, and a test compares them. `groupwise methods` lists the",
        "methods, `groupwise show NAME` prints one, and `groupwise diff A B` the differences between two. *Recalled*",
        "marks entries that were not read again in their source; *inferred* marks entries without a source.",
        "",
        "The label of a method says how it was checked: *code read*, against the code of the authors or of a widely",
        "used library, in the linked file; *code read earlier*, against such code, which was not opened again;",
        "*paper read*, against the text of the paper; *our reading*, neither, so that a formula or a central choice",
        "is inferred.",
        "",
        f"![Each method below the one that it changes]({TREE})",
        "",
        "`groupwise methods --map FILE.html` writes this tree and a table of parts as",
        "[a page](certificates.md#the-map), where a name opens the method.",
        "",
    ]
    for family in FAMILIES:
        known = [method for name, method in methods().items() if method_family(name) == family]
        lines += [f"## {family}", "", subject_of(family), ""]
        if known:
            lines += ["| method | paper | label | in one sentence |", "|---|---|---|---|", *map(_row, known), ""]
            lines += [line for method in known for line in _section(method)]
    return "\n".join(lines).rstrip() + "\n"


def changes_file() -> str:
    """One line for each method with a parent: the fields that differ from it."""
    known = methods()
    parents = {name: reference_of(method).parent for name, method in known.items()}
    changes = {name: changed_fields(known[p](), known[name]()) for name, p in sorted(parents.items()) if p}
    return "".join(f"{name}: {', '.join(fields)}\n" for name, fields in changes.items())


def _row(function: Callable[..., Method]) -> str:
    reference = reference_of(function)
    summary = _cell(str(function.__doc__).partition("\n")[0])
    return f"| [{function.__name__}](#{function.__name__}) | {_link(function)} | {reference.label} | {summary} |"


def _link(function: Callable[..., Method]) -> str:
    reference = reference_of(function)
    if not reference.arxiv:
        return f"{reference.paper}, {reference.year}"
    return f"[{reference.paper}](https://arxiv.org/abs/{reference.arxiv})"


def _section(function: Callable[..., Method]) -> list[str]:
    reference, name = reference_of(function), function.__name__
    head, *rows = differences(reference, function())
    texts = auto_texts(function())
    notes = [f"Code read: [{reference.code.partition(':')[2]}]({reference.code_link})."] if reference.code else []
    notes += [f"It changes [{reference.parent}](#{reference.parent})."] if reference.parent else []
    notes += [f"Its paper describes: {reference.kind}."] if reference.kind != "method" else []
    notes += [f"Claim, stated before the runs: {reference.effect.claim(name)}."] if reference.effect else []
    notes += [f"No effect is measured. {reference.no_effect}"] if reference.no_effect else []
    notes += [f"Finding: {reference.finding}"] if reference.finding else []
    what, *texts = (inspect.getdoc(function) or "").split("\n\n")
    why = [text for text in texts if not text.startswith("Args:")]
    arguments = [text for text in texts if text.startswith("Args:")]
    return [
        f"### {name}",
        "",
        f"{what} {_link(function)}.",
        "",
        *(line for text in why for line in (text, "")),
        *(line for text in arguments for line in (_argument_list(text), "")),
        *(line for note in notes for line in (note, "")),
        "```text",
        *reference.formula.splitlines(),
        "```",
        "",
        f"| {' | '.join(head)} |",
        "|---|---|---|---|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
        "",
        f"All its parts and constants (`src/groupwise/methods/{method_family(name)}/{name}.py`):",
        "",
        "```toml",
        *recipe_toml.write(function()).rstrip().splitlines(),
        "```",
        "",
        *(["The texts of `auto`:", "", "```text", *texts, "```", ""] if texts else []),
        "Tests, beside [those of every method](certificates.md):",
        "",
        *(f"- `{proof}`" for proof in reference.proofs),
        "",
    ]


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _argument_list(text: str) -> str:
    """The lines of a docstring's `Args:` as a list."""
    entries = re.split(r"\n    (?=\w+: )", text.removeprefix("Args:"))
    return "\n".join("- " + re.sub(r"^(\w+):", r"`\1`:", " ".join(entry.split())) for entry in entries if entry.strip())


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(methods_page(), encoding="utf-8")
    CHANGES_FILE.write_text(changes_file(), encoding="utf-8")
    page.with_name(TREE).write_text(family_tree(), encoding="utf-8")
