"""The pages of published methods: `python -m tools.method_pages docs/methods.md`.

It writes the index, the family tree, and the changed fields. The page of a method exists in the site only, which
`make site` builds: tools/site_pages.py adds `method_page(NAME)` of each method as docs/methods/NAME.md.
"""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.family_tree import family_tree

from groupwise import methods as room
from groupwise.commands.methods import CHANGES
from groupwise.commands.show_and_diff import auto_texts, differences
from groupwise.config import recipe_toml
from groupwise.config.diff import changed_fields, diff
from groupwise.config.registry import methods
from groupwise.methods import Method, reference_of
from groupwise.methods.families import FAMILIES, method_family, subject_of

assert room.__file__ is not None
INDEX = "docs/methods.md"
"""The index, relative to the repository. The page of a method is in the folder of the same name."""
TREE = "atlas.svg"
"""The picture of the family tree, beside the index."""
CHANGES_FILE = Path(room.__file__).with_name(CHANGES)


def methods_index() -> str:
    """The index of all published methods, as Markdown: a chapter for each family, a line for each method.

    The line of a method has its name as anchor, and links to its file.
    """
    lines = [
        "# Methods",
        "",
        "A name leads to the method's file; on the site it leads to the method's page, with formula, changes,",
        "arguments, constants, effect and tests. `groupwise show NAME` prints the same facts, `groupwise methods`",
        "lists the methods, and `groupwise diff A B` prints the differences between two. `make docs` writes this index",
        "from the values, and a test compares them.",
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
        rows = [_row(method) for name, method in methods().items() if method_family(name) == family]
        head = ["| method | paper | label | in one sentence |", "|---|---|---|---|"]
        lines += [f"## {family}", "", subject_of(family), "", *head, *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def page_of(name: str) -> str:
    """The path of a method's page in the site, relative to the repository: docs/methods/NAME.md."""
    return f"{INDEX.removesuffix('.md')}/{name}.md"


def method_page(name: str) -> str:
    """The page of a method as Markdown. Its links are relative to docs/methods."""
    function = methods()[name]
    reference, method = reference_of(function), function()
    what, *texts = (inspect.getdoc(function) or "").split("\n\n")
    parent, source = reference.parent, _source(name)
    head, *rows = differences(reference, method)
    effect = (
        [f"Claim, stated before the runs: {reference.expected_effect.claim(name)}."]
        if reference.expected_effect
        else []
    )
    effect += [f"No effect is measured. {reference.unmeasured_reason}"] if reference.unmeasured_reason else []
    effect += [f"Finding: {reference.our_finding}"] if reference.our_finding else []
    changes = diff(methods()[parent](), method) if parent else []
    code = [f"Code read: [{reference.code.partition(':')[2]}]({reference.code_link})."] if reference.code else []
    sections = {
        "Formula": _block("text", reference.formula.splitlines()),
        "Changes": [f"It changes [{parent}]({parent}.md):", *_block("text", changes)] if parent else [],
        "Arguments": [_argument_list(text) for text in texts if text.startswith("Args:")],
        "Parts and constants": [
            f"The file of the method: [`{source}`](../../{source}).",
            *_block("toml", recipe_toml.write(method).rstrip().splitlines()),
        ],
        "Differences from the paper": [
            *code,
            "*Recalled* marks entries that were not read again in their source; *inferred* marks entries without one.",
            "\n".join([_line(head), "|---|---|---|---|", *map(_line, rows)]),
        ],
        "Texts of `auto`": _block("text", auto_texts(method)),
        "Effect": effect,
        "Tests": [
            "Beside [those of every method](../certificates.md):",
            "\n".join(f"- `{proof}`" for proof in reference.proof_tests),
        ],
    }
    kind = f" Its paper describes: {reference.contribution_kind}." if reference.contribution_kind != "method" else ""
    facts = f"Family [{method_family(name)}](../methods.md#{method_family(name)}); {reference.evidence}.{kind}"
    why = [text for text in texts if not text.startswith("Args:")]
    lines = [f"# {name}", f"{what} {_link(function)}.", facts, *why]
    lines += [line for title, text in sections.items() if text for line in (f"## {title}", *text)]
    return "\n\n".join(lines) + "\n"


def changes_file() -> str:
    """One line for each method with a parent: the fields that differ from it."""
    known = methods()
    parents = {name: reference_of(method).parent for name, method in known.items()}
    changes = {name: changed_fields(known[p](), known[name]()) for name, p in sorted(parents.items()) if p}
    return "".join(f"{name}: {', '.join(fields)}\n" for name, fields in changes.items())


def _row(function: Callable[..., Method]) -> str:
    name, summary = function.__name__, str(function.__doc__).partition("\n")[0]
    anchor = f'<a id="{name}"></a>[{name}](../{_source(name)})'
    return _line([anchor, _link(function), reference_of(function).evidence, summary])


def _source(name: str) -> str:
    """The file of a method, relative to the repository."""
    return f"src/groupwise/methods/{method_family(name)}/{name}.py"


def _link(function: Callable[..., Method]) -> str:
    reference = reference_of(function)
    if not reference.arxiv:
        return f"{reference.paper}, {reference.year}"
    return f"[{reference.paper}](https://arxiv.org/abs/{reference.arxiv})"


def _line(cells: Sequence[str]) -> str:
    """A row of a table."""
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _block(language: str, lines: Sequence[str]) -> list[str]:
    """A fenced block; nothing without lines."""
    return ["\n".join([f"```{language}", *lines, "```"])] if lines else []


def _argument_list(text: str) -> str:
    """The lines of a docstring's `Args:` as a list."""
    entries = re.split(r"\n    (?=\w+: )", text.removeprefix("Args:"))
    return "\n".join("- " + re.sub(r"^(\w+):", r"`\1`:", " ".join(entry.split())) for entry in entries if entry.strip())


if __name__ == "__main__":
    index = Path(sys.argv[1])
    index.write_text(methods_index(), encoding="utf-8")
    CHANGES_FILE.write_text(changes_file(), encoding="utf-8")
    index.with_name(TREE).write_text(family_tree(), encoding="utf-8")
