"""`code_hash`: a hash of the code that a method runs. A stored result with another hash is stale."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from groupwise.config.diff import diff
from groupwise.config.registry import definition_of
from groupwise.data import with_fields
from groupwise.methods import Method

PACKAGE = __name__.partition(".")[0]
DECLARED = (
    "roles",
    "contents",
    "needs_feedback",
    "needs_environment",
    "works_on_whole_answers",
    "makes_own_noise",
    "unstored_input",
    "tracks_prompts",
    "column_type",
    "column_optional",
    "writes_stored_answers",
    "scores_answers",
    "numbers",
)
"""Members of components that only `check` and metrics read, also as the decorator `verdicts_have`. Not counted."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def code_hash(method: Method) -> str:
    """A hash of a method's constants and of its components' code, with the definitions that it uses in the same files.

    Comments, docstrings, formatting, messages of errors, the names of files and declarations for `check` (`DECLARED`)
    do not count, nor does other code in the same files. Fields with the values of a bare `Method`, such as the
    curriculum `Shuffled`, do not count either: they belong to no method.

    >>> from groupwise.methods import gspo
    >>> code_hash(gspo()) == code_hash(gspo()), code_hash(gspo()) == code_hash(gspo(low=0.1))
    (True, False)
    """
    values = [(getattr(method, f.name), getattr(Method(), f.name)) for f in fields(method)]
    parts = with_fields(tuple(value for value, bare in values if value != bare))
    kinds = {definition_of(part) for part in parts if callable(definition_of(part))}
    code = {text for kind in kinds if kind.__module__.startswith(PACKAGE) for text in _code_of(kind)}
    return hashlib.sha256("\n".join([*diff(Method(), method), *sorted(code)]).encode()).hexdigest()[:16]


def _code_of(kind: Any) -> Iterator[str]:
    """The syntax trees of a class or function and of the module's names that it uses, directly or not."""
    definitions, names, seen = _definitions(kind.__module__), [kind.__name__], set[str]()
    while names:
        name = names.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        tree = definitions[name]
        yield f"{name}: {_dump(tree)}"
        names += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _dump(node: Any) -> str:
    """A syntax tree as text, without empty fields, which `ast.dump` writes differently in each version of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    filled = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
    return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in filled)})"


@cache
def _definitions(module: str) -> Mapping[str, Definition]:
    """The functions, classes and constants of a module by name, without docstrings, errors' texts and declarations."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [x for x in body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]  # type: ignore[attr-defined]
        if isinstance(node, ast.ClassDef):
            node.body = [x for x in node.body if _name(x) not in DECLARED]
            node.decorator_list = [x for x in node.decorator_list if not ast.unparse(x).startswith("verdicts_have(")]
    found: dict[str, Definition] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
    return found


def _name(member: ast.stmt) -> str:
    """The name of a method or of a class variable with a type; empty for other statements of a class."""
    return getattr(member, "name", "") or getattr(getattr(member, "target", None), "id", "")
