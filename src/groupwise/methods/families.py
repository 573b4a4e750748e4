"""The families of published methods, which are folders of this package. Files are parsed, not imported."""

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from groupwise.core.lazy_imports import names_of

ROOM = __name__.rpartition(".")[0]
FAMILIES = ("classics", "ratio", "rewards_and_advantages", "sampling", "contrast", "multi_agent", "flow", "stored")
"""The folders, in the order of docs/methods.md. The docstring of each `__init__.py` says what the family is about."""
SIZES = ("group_size", "max_refills", "minibatches", "epochs", "shuffle")
"""Fields for sizes, which nearly every method sets. Comparisons of methods leave them out if anything else differs."""


@cache
def method_files() -> Mapping[str, str]:
    """The module of each published method by its name: a file of a family that exports a function of the same name.

    >>> method_files()["gspo"]
    'groupwise.methods.ratio.gspo'
    """
    return {
        name: module
        for name, module in names_of(ROOM).items()
        if module in (f"{ROOM}.{family}.{name}" for family in FAMILIES)
    }


def published_name(text: str) -> str:
    """The published method that a text names in any case, with or without its underscores; the text if there is none.

    >>> published_name("GRPO"), published_name("Dr. GRPO"), published_name("my_file:mine")
    ('grpo', 'dr_grpo', 'my_file:mine')
    """
    known = method_files()
    plain = re.sub(r"[^a-z0-9:]", "", text.casefold())
    return text if text in known else next((name for name in known if name.replace("_", "") == plain), text)


def method_family(name: str) -> str:
    """The family of a published method.

    >>> method_family("gspo")
    'ratio'
    """
    return method_files()[name].split(".")[-2]


def subject_of(family: str) -> str:
    """The docstring of a family's folder, which describes its methods."""
    return ast.get_docstring(ast.parse(source_of(f"{ROOM}.{family}"))) or ""


@cache
def methods_with_argument() -> Mapping[str, Sequence[str]]:
    """The published methods that have an argument, by its name.

    >>> methods_with_argument()["align"]
    ['m_grpo']
    """
    owners: dict[str, list[str]] = {}
    for name, module in method_files().items():
        (function,) = (node for node in ast.parse(source_of(module)).body if getattr(node, "name", "") == name)
        assert isinstance(function, ast.FunctionDef)
        for argument in (*function.args.args, *function.args.kwonlyargs):
            owners.setdefault(argument.arg, []).append(name)
    return owners


def source_of(module: str) -> str:
    """The source text of a module, which is not imported."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")
