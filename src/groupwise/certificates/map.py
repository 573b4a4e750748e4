"""The map of several certificates: a tree of methods by the method that each changes, and a table of their parts."""

from collections.abc import Sequence
from html import escape

from groupwise.certificates.certificate import Certificate
from groupwise.certificates.page import page, section

TITLE = "Methods"


def map_page(certificates: Sequence[Certificate]) -> str:
    """The page with links to the certificates, which lie beside it as NAME.html. All text is escaped."""
    names = {c.name for c in certificates}
    roots = [c for c in certificates if c.parent not in names]
    passed = sum(c.passed for c in certificates)
    word = "passed" if passed == len(certificates) else "failed"
    content = (
        f'<p class="verdict {word}">{passed} of {len(certificates)} methods passed</p>',
        f"<h1>{TITLE}</h1>",
        section("Each method below the one that it changes", branches(roots, certificates)),
        section("Parts", matrix(certificates)),
    )
    return page(TITLE, "\n".join(content))


def branches(chosen: Sequence[Certificate], certificates: Sequence[Certificate]) -> str:
    """Methods with the methods that change them, as nested lists. A click folds a branch."""
    items = []
    for c in chosen:
        children = [other for other in certificates if other.parent == c.name]
        below = f"\n{branches(children, certificates)}" if children else ""
        items.append(f"<li><details open><summary>{line(c)}</summary>{below}</details></li>" if below else leaf(c))
    return f'<ul class="tree">\n{chr(10).join(items)}\n</ul>'


def leaf(c: Certificate) -> str:
    """A method that no other changes."""
    return f"<li>{line(c)}</li>"


def line(c: Certificate) -> str:
    """Name, family, year, label and result of a method, with its summary as a tooltip."""
    word = "passed" if c.passed else "failed"
    facts = escape(f"{c.family}, {c.year}, {c.label}")
    return f'{link(c)} <span class="source">{facts}</span> <span class="{word}">{word}</span>'


def link(c: Certificate) -> str:
    """A link to the certificate of a method."""
    return f'<a href="{escape(c.name)}.html" title="{escape(c.summary)}">{escape(c.name)}</a>'


def matrix(certificates: Sequence[Certificate]) -> str:
    """A row for each method and a column for each part that one of them has, by socket."""
    columns = sorted({(socket, part) for c in certificates for socket, parts in c.parts.items() for part in parts})
    sockets = {socket: sum(s == socket for s, _ in columns) for socket, _ in columns}
    groups = "".join(f'<th colspan="{count}">{escape(socket)}</th>' for socket, count in sockets.items())
    heads = "".join(f'<th class="part"><span>{escape(part)}</span></th>' for _, part in columns)
    rows = "\n".join(
        f"<tr><th>{link(c)}</th>{''.join(cell(part in c.parts.get(socket, ()), part) for socket, part in columns)}</tr>"
        for c in certificates
    )
    head = f"<thead><tr><td></td>{groups}</tr>\n<tr><td></td>{heads}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table class="matrix">{head}\n<tbody>{rows}</tbody></table></div>'


def cell(has: bool, part: str) -> str:
    """A mark with the name of the part, or an empty cell."""
    return f'<td title="{escape(part)}">●</td>' if has else "<td></td>"
