"""Read the prose of the repository: docstrings, comments, messages and pages.

    python -m tools.words SEED [PACKAGE]

prints 40 first docstring lines and 20 error messages of a package directory, drawn by a seed. A reader who does not
know the code paraphrases each; a line without a correct paraphrase has failed. `tests/docs/test_words.py` checks the
same prose for archaic phrases.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

HOME = Path(__file__).resolve().parents[1]
SOURCE = HOME / "src" / "groupwise"
DOCSTRINGS, MESSAGES = 40, 20
ERRORS = (
    r"(Error|Usage|BadData|MissingRequirement|Environment|Diverged|NoSignal|Unverifiable|Mismatch|Storage|Locked"
    r"|WorkerLost|SystemExit)$"
)
"""The last name of a call that constructs an error; `Environment` is a former name of `MissingRequirement`."""
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)


class Passage(NamedTuple):
    """A piece of prose: its line in the file, its kind, the name that it documents (or ""), its text."""

    line: int
    kind: Literal["docstring", "comment", "message", "page"]
    name: str
    text: str


def prose_of(path: Path) -> list[Passage]:
    """All prose of a Python file, or the prose of a Markdown page without its code."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        blank = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
        return [Passage(n, "page", "", line) for n, line in enumerate(blank.splitlines(), 1) if line.strip()]
    tree = ast.parse(text)
    docstrings = {id(node): name for node, name in _docstrings(tree)}
    return [*_strings(tree, docstrings), *_comments(text)]


def first_line(passage: Passage) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join(passage.text.strip().partition("\n\n")[0].split())


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Each docstring with its name, including the strings below fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([node, *body], body):
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as constant):
                    yield constant, _name(before)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return getattr(node, "name", "")


def _strings(tree: ast.AST, docstrings: Mapping[int, str]) -> Iterator[Passage]:
    """Docstrings, and each other string with a space between words, with `{}` in place of values."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values)
            case ast.Constant(value=str(text)) if id(node) in docstrings:
                yield Passage(node.lineno, "docstring", docstrings[id(node)], text)
                continue
            case ast.Constant(value=str(text)) if id(node) not in inside:
                pass
            case _:
                continue
        if " " in text.strip():
            yield Passage(node.lineno, "message", "", text)


def _comments(text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], "comment", "", token.string.lstrip("# "))


def errors_of(path: Path) -> list[str]:
    """The literal texts of each error that a file constructs, joined by ` | `."""
    messages = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and re.search(ERRORS, ast.unparse(node.func)):
            values = (*node.args, *(keyword.value for keyword in node.keywords))
            if text := " | ".join(passage.text for value in values for passage in _strings(value, {})):
                messages.append(" ".join(text.split()))
    return messages


def draw(seed: int, source: Path = SOURCE) -> list[str]:
    """`file:name: first line` of docstrings, then `file: text` of error messages."""
    docstrings, messages = [], []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        docstrings += [f"{file}:{p.name}: {first_line(p)}" for p in prose_of(path) if p.kind == "docstring"]
        messages += [f"{file}: {text}" for text in errors_of(path)]
    random = Random(seed)
    return random.sample(docstrings, DOCSTRINGS) + random.sample(messages, MESSAGES)


if __name__ == "__main__":
    print("\n".join(draw(int(sys.argv[1]), *map(Path, sys.argv[2:3]))))
