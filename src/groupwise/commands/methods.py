"""`groupwise methods`: the published methods. Their files are parsed, not imported, so it needs no torch."""

import ast
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from groupwise.core.errors import Usage
from groupwise.core.terminal_width import terminal_width, wrapped
from groupwise.methods.families import FAMILIES, ROOM, SIZES, method_family, method_files, source_of, subject_of
from groupwise.methods.reference import year_of

WIDTH = 116
CHANGES = "changes.txt"
"""The packaged file with the fields that each method changes in its parent method. `make docs` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """A published method in the list. `changes` are the fields in which it differs from its `parent` method."""

    name: str
    family: str
    summary: str
    paper: str
    arxiv: str
    year: int
    evidence: str
    contribution_kind: str
    parent: str
    changes: tuple[str, ...]


def list_methods(family: str = "", like: str = "") -> str:
    """The published methods by family, two lines each; of one family, or those like another. Raises `Usage`."""
    known = entries()
    if family and family not in FAMILIES:
        raise Usage(f"no family is called {family!r}", fix=f"the families are {', '.join(FAMILIES)}")
    if like:
        similar = [e for e in alike(like, known) if family in ("", e.family)]
        return "\n".join(lines_of(similar)) or f"no method changes what {like} changes"
    chosen = {f: [e for e in known if e.family == f] for f in FAMILIES if family in ("", f)}
    columns = min(terminal_width(sys.stdout, WIDTH), WIDTH)
    titles = {f: wrapped(f"{f}: {subject_of(f).splitlines()[0]}", columns) for f in chosen}
    return "\n\n".join("\n".join([titles[f], *lines_of(of_f)]) for f, of_f in chosen.items() if of_f or family)


def lines_of(chosen: Sequence[MethodEntry]) -> list[str]:
    """Each method as text: name, year, what it was checked against, what it changes in its parent, one sentence."""
    lines = []
    columns = min(terminal_width(sys.stdout, WIDTH), WIDTH)
    width = max((len(e.name) for e in chosen), default=0) + 2
    for e in chosen:
        kind = "" if e.contribution_kind == "method" else f"  {e.contribution_kind}"
        parent = f"  {e.parent}: {', '.join(e.changes)}" if e.parent else ""
        head = f"  {e.name:<{width}}{e.year}  {e.evidence:<11}{kind}{parent}".rstrip()
        lines += textwrap.wrap(head, columns, subsequent_indent=" " * (width + 21))
        lines += textwrap.wrap(e.summary, columns, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines


def alike(name: str, known: Sequence[MethodEntry]) -> list[MethodEntry]:
    """Methods like this one: its parent and children, then others by the share of changed fields in common."""
    names = [e.name for e in known]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        fix = f"did you mean {near[0]}?" if near else "groupwise methods lists the names"
        raise Usage(f"no method is called {name!r}", fix=fix)
    this = known[names.index(name)]
    return [e for e in sorted(known, key=lambda e: -likeness(this, e)) if e is not this and likeness(this, e)]


def likeness(a: MethodEntry, b: MethodEntry) -> float:
    """How alike two methods are: 2 for parent and child, else the share of their changed fields that both change."""
    if a.name == b.parent or b.name == a.parent:
        return 2.0
    one, other = set(a.changes).difference(SIZES), set(b.changes).difference(SIZES)
    return len(one & other) / max(len(one | other), 1)


@cache
def entries() -> tuple[MethodEntry, ...]:
    """Every published method, sorted by year and arXiv number."""
    lines = files(ROOM).joinpath(CHANGES).read_text(encoding="utf-8").splitlines()
    changes = dict(line.split(": ", 1) for line in lines)
    found = [_entry(name, module, changes.get(name, "")) for name, module in method_files().items()]
    return tuple(sorted(found, key=lambda e: (e.year, e.arxiv, e.name)))


def _entry(name: str, module: str, changes: str) -> MethodEntry:
    body = ast.parse(source_of(module)).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    constants = _constants(module, body)
    arxiv = str(constants.get("arxiv", ""))
    return MethodEntry(
        name=name,
        family=method_family(name),
        summary=(ast.get_docstring(function) or "").partition("\n")[0],
        paper=str(constants["paper"]),
        arxiv=arxiv,
        year=int(constants.get("year", 0)) or year_of(arxiv),
        evidence=str(constants["evidence"]),
        contribution_kind=str(constants.get("contribution_kind", "method")),
        parent=str(constants.get("parent", "")),
        changes=tuple(filter(None, changes.split(", "))),
    )


def _constants(module: str, body: Sequence[ast.stmt]) -> dict[str, str | int]:
    """The texts and numbers in a method's `REFERENCE` (paper, year, ...), read from its source."""
    for node in body:
        match node:
            case ast.Assign([ast.Name("REFERENCE")], ast.Call(keywords=keywords)):
                values = {k.arg: k.value.value for k in keywords if k.arg and isinstance(k.value, ast.Constant)}
                return {name: value for name, value in values.items() if isinstance(value, str | int)}
    raise LookupError(f"{module} defines no REFERENCE: its paper, formula and differences")
