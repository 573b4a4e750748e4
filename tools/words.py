"""Read the prose of the repository: docstrings, comments, messages and pages.

    python -m tools.words SEED [PACKAGE]

prints 40 first docstring lines and 20 error messages of a package directory, drawn by a seed. A message includes its
evidence and its fix. A reader who does not know the code paraphrases each; a line without a correct paraphrase has
failed. `tests/docs/test_words.py` checks the same prose for archaic phrases.
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
    r"(Error|Usage|BadData|MissingRequirement|Diverged|NoSignal|Unverifiable|LogprobMismatch|Storage|Locked"
    r"|WorkerLost|SystemExit)$"
)
"""The last name of a call that constructs an error."""
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
    """Each error that a file constructs, as a user sees it: `what | evidence: ... | fix: ...`.

    A value appears as its expression in braces, a local variable as the texts that its function assigns to it.
    """
    tree = ast.parse(path.read_text("utf-8"))
    texts: dict[int, str] = {}
    for scope in ast.walk(tree):  # outer functions first: an inner function's variables replace theirs
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        local = {} if isinstance(scope, ast.Module) else _assigned(scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and re.search(ERRORS, ast.unparse(node.func)):
                texts[id(node)] = _message(node, local)
    return [text for text in texts.values() if " " in re.sub(r"\{[^{}]*\}", "", text).strip()]


def _message(call: ast.Call, local: Mapping[str, list[ast.expr]]) -> str:
    labelled = [("", value) for value in call.args]
    labelled += [(f"{keyword.arg}: ", keyword.value) for keyword in call.keywords if keyword.arg]
    return " | ".join(label + " ".join(_shown(value, local).split()) for label, value in labelled)


def _assigned(function: ast.AST) -> dict[str, list[ast.expr]]:
    """The expressions that a function assigns to each local variable."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts))
        elif isinstance(node, ast.NamedExpr):
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name):
                values.setdefault(target.id, []).append(value)
    return values


def _shown(value: ast.expr, local: Mapping[str, list[ast.expr]]) -> str:
    """The text of an expression, with each value in braces and alternatives separated by ` / `."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_shown(part, local) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if _is_text(local.get(name, [])):
            return _shown(value.value, local)
        case ast.FormattedValue(value=inner):
            return f"{{{ast.unparse(inner)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _shown(left, local) + _shown(right, local)
        case ast.IfExp(body=body, orelse=other):
            return f"{_shown(body, local)} / {_shown(other, local)}"
        case ast.Name(id=name) if _is_text(local.get(name, [])):
            return " / ".join(_shown(text, {}) for text in local[name])
    return f"{{{ast.unparse(value)}}}"


def _is_text(values: list[ast.expr]) -> bool:
    return bool(values) and all(isinstance(v, ast.JoinedStr | ast.IfExp | ast.Constant) for v in values)


def draw(seed: int, source: Path = SOURCE) -> list[str]:
    """`file:name: first line` of docstrings, then `file: text` of error messages with evidence and fix."""
    docstrings, messages = [], []
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        docstrings += [f"{file}:{p.name}: {first_line(p)}" for p in prose_of(path) if p.kind == "docstring"]
        messages += [f"{file}: {text}" for text in errors_of(path)]
    random = Random(seed)
    return random.sample(docstrings, DOCSTRINGS) + random.sample(messages, MESSAGES)


if __name__ == "__main__":
    print("\n".join(draw(int(sys.argv[1]), *map(Path, sys.argv[2:3]))))
