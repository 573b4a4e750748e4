"""An HTML page about all methods: which changes which, a table of their components, and each one's certificate.

It has no scripts: a link to `#NAME` opens the sheet of a method by the `:target` of the style sheet.
"""

from collections.abc import Sequence
from html import escape

from groupwise.certificates.certificate import Certificate
from groupwise.certificates.certificate_page import content, page, section, verdict
from groupwise.certificates.method_lineage import changed, children, family_index, roots, walk

TITLE = "Methods"
HOW = (
    "A name opens the method: its formula, changes, differences, tests and constants. "
    "Close, or the browser's Back, returns to the map."
)


def map_page(certificates: Sequence[Certificate]) -> str:
    """The page of all methods, in one file. All text is escaped."""
    passed = sum(c.passed for c in certificates)
    known = [c for c in certificates if c.verdict != "not run"]
    word = "passed" if passed == len(certificates) else "failed"
    head = f'<p class="verdict {word}">{passed} of {len(certificates)} methods passed</p>' if known else ""
    parts = (
        head,
        f"<h1>{TITLE}</h1>",
        f'<p class="source">{HOW}</p>',
        section("Each method below the one that it changes", branches(roots(certificates), certificates)),
        section("Components", matrix(certificates)),
        *(sheet(c, certificates) for c in certificates),
    )
    return page(TITLE, "\n".join(filter(None, parts)))


def branches(chosen: Sequence[Certificate], certificates: Sequence[Certificate]) -> str:
    """HTML: methods, with the methods that change them, as nested lists that a click folds."""
    items = []
    for c in chosen:
        below = children(c, certificates)
        inner = f"\n{branches(below, certificates)}" if below else ""
        items.append(f"<li><details open><summary>{line(c)}</summary>{inner}</details></li>" if inner else leaf(c))
    return f'<ul class="tree">\n{chr(10).join(items)}\n</ul>'


def leaf(c: Certificate) -> str:
    """HTML: a method that no other method changes, as a list item."""
    return f"<li>{line(c)}</li>"


def line(c: Certificate) -> str:
    """HTML: a method's name, family, year, label, changed fields, and test result."""
    facts = escape(f"{c.family}, {c.year}, {c.evidence}")
    fields = f' <code class="changed">{escape(", ".join(changed(c)))}</code>' if c.changes else ""
    result = "" if c.verdict == "not run" else f' <span class="{c.verdict}">{c.verdict}</span>'
    dot = f'<i class="dot f{family_index(c)}"></i>'
    return f'{dot}{link(c, f"at-{c.name}")} <span class="source">{facts}</span>{fields}{result}'


def link(c: Certificate, anchor: str = "") -> str:
    """HTML: a link that opens a method's certificate; `anchor` is the id that its Close link returns to."""
    here = f' id="{escape(anchor)}"' if anchor else ""
    return f'<a{here} href="#{escape(c.name)}" title="{escape(c.summary)}">{escape(c.name)}</a>'


def matrix(certificates: Sequence[Certificate]) -> str:
    """HTML: a table with a row for each method, a column for each component, and marks where a method has it."""
    columns = sorted({(socket, part) for c in certificates for socket, parts in c.components.items() for part in parts})
    sockets = {socket: sum(s == socket for s, _ in columns) for socket, _ in columns}
    groups = "".join(f'<th colspan="{count}">{escape(socket)}</th>' for socket, count in sockets.items())
    heads = "".join(f'<th class="part"><span>{escape(part)}</span></th>' for _, part in columns)
    rows = "\n".join(
        f"<tr><th>{link(c)}</th>{''.join(cell(c, socket, part) for socket, part in columns)}</tr>"
        for _, c in walk(certificates)
    )
    head = f"<thead><tr><td></td>{groups}</tr>\n<tr><td></td>{heads}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table class="matrix">{head}\n<tbody>{rows}</tbody></table></div>'


def cell(c: Certificate, socket: str, part: str) -> str:
    """HTML: a cell with a mark if the method has the component. A click on the mark opens the method."""
    if part not in c.components.get(socket, ()):
        return "<td></td>"
    return f'<td title="{escape(part)}"><a href="#{escape(c.name)}" tabindex="-1">●</a></td>'


def sheet(c: Certificate, certificates: Sequence[Certificate]) -> str:
    """HTML: a method's certificate, shown over the page, with links to its parent and to the methods that change it."""
    names = {other.name: other for other in certificates}
    near = [f"changes {link(names[c.parent])}"] if c.parent in names else []
    below = children(c, certificates)
    near += [f"changed by {', '.join(map(link, below))}"] if below else []
    about = f'<p class="near">{"; ".join(near)}</p>' if near else ""
    close = f'<a class="close" href="#at-{escape(c.name)}">Close</a>'
    return (
        f'<article class="sheet" id="{escape(c.name)}" tabindex="-1" aria-label="{escape(c.name)}">\n'
        f"{close}\n{verdict(c)}\n<h2>{escape(c.name)}</h2>\n{about}\n{content(c)}\n</article>"
    )
