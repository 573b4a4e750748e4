"""Writes a certificate as an HTML page without scripts, which opens from disk without a network."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from groupwise.certificates.certificate import Certificate

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def certificate_page(c: Certificate) -> str:
    """The HTML page of a certificate. All text is escaped."""
    return page(f"{c.name}: certificate", f"{verdict(c)}\n<h1>{escape(c.name)}</h1>\n{content(c)}")


def verdict(c: Certificate) -> str:
    """HTML: whether all tests of a method passed, or the command that runs them."""
    if c.verdict == "not run":
        return f'<p class="verdict">{len(c.proofs)} proofs: groupwise certify {escape(c.name)}</p>'
    passed = sum(proof.result == "passed" for proof in c.proofs)
    seconds = sum(proof.seconds for proof in c.proofs)
    return f'<p class="verdict {c.verdict}">{c.verdict}: {passed} of {len(c.proofs)} proofs, {seconds:.1f} s</p>'


def content(c: Certificate) -> str:
    """HTML: the content of a certificate below its name."""
    versions = ", ".join(f"{name} {version}" for name, version in c.versions.items())
    commit = [] if c.verdict == "not run" else [f"commit {c.commit or 'unknown'}", versions]
    facts = [c.family, str(c.year), c.contribution_kind, c.evidence, *commit]
    tests = [(p.test, p.result, str(p.case_count), f"{p.seconds:.2f}") for p in c.proofs]
    differences = [(d.subject, d.paper, d.code, d.ours) for d in c.differences]
    sections = (
        section("Formula", pre(c.formula)),
        section(f"Changes in {c.parent}", items(c.changes)) if c.changes else "",
        section("Differences", table(("", "paper", "authors' code and others", "here"), differences)),
        section("Effect, stated before the runs", effect(c)) if c.expected_effect or c.unmeasured_reason else "",
        section("Finding", paragraph(c.our_finding)) if c.our_finding else "",
        section("Proofs", table(("test", "result", "cases", "seconds"), tests)),
        section("Constants", pre(c.constants)),
    )
    return "\n".join(
        (
            f'<p class="source">{escape(c.paper)}</p>',
            paragraph(c.summary),
            paragraph(f"Code read: {c.authors_code}") if c.authors_code else "",
            f'<ul class="facts">{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>',
            *filter(None, sections),
        )
    )


def effect(c: Certificate) -> str:
    """HTML: the effect that the paper states and its measurement, or the reason why there is none."""
    measured = str(c.measured_effect) if c.measured_effect else "Not measured with this code."
    texts = [c.expected_effect, measured] if c.expected_effect else [c.unmeasured_reason]
    exact = [f"Shown in expectation: {c.toy_test}"] if c.toy_test else []
    return "\n".join(map(paragraph, [*texts, *exact]))


def page(title: str, content: str) -> str:
    """A complete HTML page with a title; `content` is HTML. It has no scripts and requests nothing."""
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""


def section(title: str, content: str) -> str:
    """HTML: a section with a title; `content` is HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def paragraph(text: str) -> str:
    """HTML: a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def pre(text: str) -> str:
    """HTML: plain text with its line breaks, which scrolls and can be reached by keyboard."""
    return f'<pre tabindex="0">{escape(text)}</pre>'


def items(lines: Iterable[str]) -> str:
    """HTML: a list of lines of code."""
    return f"<ul>{''.join(f'<li><code>{escape(line)}</code></li>' for line in lines)}</ul>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """HTML: a table of plain text. Each cell also contains its column's name, for narrow screens.

    >>> table(("a",), [("<1>",)])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td data-column="a">&lt;1&gt;</td></tr></tbody></table>'
    """
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = (
        "".join(f'<td data-column="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head, row))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
