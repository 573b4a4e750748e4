"""Break the code of methods by rule, one place at a time, and run the certificate of a method that uses it.

    python -m tools.certificate_breaks --list              # the breaks, without running anything
    python -m tools.certificate_breaks --every 4 --jobs 2  # each fourth
    python -m tools.certificate_breaks --only 'surrogates'

Each rule of `RULES` changes one expression of a part that formulas are made of: a filter, shaping, advantage, credit,
mask, a part of the objective, an auxiliary loss or a memory; or of the path that all methods share; or a constant or a
keyword of a method's function. A break is noticed if a proof fails, or if the broken file cannot be imported. Exit code
1 if one is not noticed.
"""

import argparse
import ast
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from groupwise.certificates.proofs import proofs_of
from groupwise.config.registry import definition_of, methods
from groupwise.data import Segments, with_fields
from groupwise.learner import make_plan
from groupwise.methods import Method
from groupwise.rollout.buffer import Buffer, eligible_answers
from groupwise.training.loop import compute_advantages
from tools.breaks import HOME, Break, job

FORMULA = ("filter", "shaping", "advantage", "credit", "mask", "objective", "auxiliary_losses", "memory")
"""The fields of a method that its transcription and the laws cover; strategies and curricula have tests of their own."""
SHARED = {
    "grpo": (Segments, eligible_answers),
    "dapo": (Buffer._selected,),
    "ppo": (compute_advantages,),
    "drpo": (make_plan,),
}
"""Definitions that all methods run, and the method whose certificate has to notice a break of them."""
LEFT_OUT = ("__post_init__", "clipped", "notes", "needs", "state", "__len__")
"""Functions that compute no number of a formula: checks of fields, metrics, names."""
KEYWORDS_LEFT_OUT = ("curriculum", "strategy", "models", "refill", "denoise", "unmask", "name", "device", "dtype")
SWAPPED = {
    "minimum": "maximum", "total": "mean", "live": "count", "log1p": "log", "expm1": "exp", "largest": "total",
    "correct": "wrong", "malformed": "unverifiable", "logp_old": "logp", "length": "limit", "score": "reward",
}  # fmt: skip
SWAPPED |= {new: old for old, new in SWAPPED.items() if new not in ("log", "exp", "total", "limit", "reward")}
IMPORTED_AGAIN = ("groupwise", "jaxtyping", "beartype")
"""Packages that a job imports itself: the first from its copy, the others as plugins of pytest."""
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Lt: ">", ast.Gt: "<", ast.LtE: ">", ast.GtE: "<",
    ast.Eq: "!=", ast.NotEq: "==", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleBreak(Break):
    """A break whose `test` is a method: it is noticed if a proof of the method fails, or if nothing can be imported."""

    caught_by: ClassVar[tuple[int, ...]] = (1, 2, 4)

    proofs: tuple[str, ...]

    @property
    def rounds(self) -> tuple[tuple[str, ...], ...]:
        """The transcription first, which notices most."""
        first = tuple(proof for proof in self.proofs if "test_whole_path" in proof)
        return tuple(filter(None, (first, tuple(proof for proof in self.proofs if proof not in first))))


def changes(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[tuple[str, str]]:
    """What to write for an expression, by each rule that applies to it: the rule, and the new text."""
    match node:
        case ast.BinOp(left, operator, right) | ast.Compare(left, [operator], [right]) if type(operator) in OPERATORS:
            new = OPERATORS[type(operator)]
            yield f"{new} for its opposite", f"({text(left)} {new} {text(right)})"
        case ast.UnaryOp(ast.USub() | ast.Invert(), operand):
            yield "a sign or a negation left out", text(operand)
        case ast.Call(ast.Attribute(value, "detach" | "clamp" | "relu" | "masked_fill" as name)):
            yield f"{name} left out", text(value)
        case ast.Call(ast.Attribute(ast.Name("torch"), "where"), [which, a, b]):
            yield "torch.where with its branches exchanged", f"torch.where({text(which)}, {text(b)}, {text(a)})"
        case ast.Attribute(value, name) if name in SWAPPED:
            yield f"{SWAPPED[name]} for {name}", f"{text(value)}.{SWAPPED[name]}"
        case ast.keyword("ddof", value):
            yield "the other ddof", f"ddof=1 - {text(value)}"


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a definition that may be broken, in order."""
    if isinstance(tree, ast.FunctionDef) and tree.name in LEFT_OUT:
        return
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.Assert):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from places(node)


def constants(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, str]]:
    """Breaks of a method's function: another number for a default, and a keyword of a call left out."""
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults):
        if isinstance(default, ast.Constant) and type(default.value) in (int, float):
            yield f"another {argument.arg}", default, repr(2 * default.value or 1)
    bare, method = Method(), methods()[function.name]()
    same = {field.name for field in fields(Method) if getattr(bare, field.name) == getattr(method, field.name)}
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Method", "Objective"):
            for keyword in call.keywords:
                if keyword.arg and keyword.arg not in {*KEYWORDS_LEFT_OUT, *same}:
                    yield f"{keyword.arg} left out", keyword, "**{}"


def definitions_of(thing: object) -> list[tuple[ModuleType, ast.FunctionDef | ast.ClassDef]]:
    """A function or class with the other definitions of its file that it uses."""
    module = inspect.getmodule(thing)
    assert module is not None
    if "." in getattr(thing, "__qualname__", ""):
        inside = ast.walk(ast.parse(inspect.getsource(module)))
        return [(module, x) for x in inside if isinstance(x, ast.FunctionDef) and x.name == thing.__name__]
    known = {
        x.name: x for x in ast.parse(inspect.getsource(module)).body if isinstance(x, ast.FunctionDef | ast.ClassDef)
    }
    names, found = [thing.__name__], dict[str, ast.FunctionDef | ast.ClassDef]()
    while names:
        name = names.pop()
        if name in known and name not in found:
            found[name] = known[name]
            names += [node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)]
    return [(module, x) for x in found.values()]


def things() -> Iterator[tuple[str, object]]:
    """Each part of a formula once, with the first method that uses it; then what all methods share."""
    seen: set[object] = set()
    for name, publish in methods().items():
        method = publish()
        parts = with_fields(tuple(getattr(method, field) for field in FORMULA))
        kinds = {definition_of(part) for part in parts if callable(definition_of(part))}
        for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__)):
            if kind.__module__.startswith("groupwise") and kind not in seen:
                seen.add(kind)
                yield name, kind
    for name, shared in SHARED.items():
        yield from ((name, thing) for thing in shared)


def breaks() -> list[RuleBreak]:
    """All breaks, in order: those of parts, of the shared path, then of the methods' own functions."""
    found: dict[tuple[str, str], RuleBreak] = {}
    for method, thing in things():
        for module, definition in definitions_of(thing):
            sites = [(what, node, new) for node in places(definition) for what, new in changes(node, text_of(module))]
            for b in broken(method, module, definition, sites):
                found.setdefault((b.file, b.new), b)
    for name, publish in methods().items():
        module = inspect.getmodule(publish)
        assert module is not None
        (function,) = (x for x in definitions_of(publish) if x[1].name == name)
        found |= {(b.file, b.new): b for b in broken(name, module, function[1], list(constants(function[1])))}
    return list(found.values())


def text_of(module: ModuleType) -> Callable[[ast.AST], str]:
    source = inspect.getsource(module)
    return lambda node: ast.get_source_segment(source, node) or ""


def broken(
    method: str,
    module: ModuleType,
    definition: ast.FunctionDef | ast.ClassDef,
    sites: Sequence[tuple[str, ast.AST, str]],
) -> Iterator[RuleBreak]:
    """The breaks of one definition: each replaces the whole of it, so that its text occurs once in the file."""
    source = inspect.getsource(module)
    assert module.__file__ is not None
    file, old = str(Path(module.__file__).relative_to(HOME)), ast.get_source_segment(source, definition) or ""
    lines = source.split("\n")

    def offset(line: int, column: int) -> int:
        return sum(len(x) + 1 for x in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())

    start = offset(definition.lineno, definition.col_offset)
    for what, node, text in sites:
        first = offset(node.lineno, node.col_offset) - start  # type: ignore[attr-defined]
        last = offset(node.end_lineno, node.end_col_offset) - start  # type: ignore[attr-defined]
        where = f"{definition.name}, line {node.lineno}: {what}"  # type: ignore[attr-defined]
        new = old[:first] + text + old[last:]
        if new != old and source.count(old) == 1:
            yield RuleBreak(Path(file).stem, where, file, old, new, method, proofs_of(methods()[method]))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.certificate_breaks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="breaks whose group, text, file or method match")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth of them (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, each with a copy (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the breaks and end")
    arguments = parser.parse_args(words)
    chosen = [b for b in breaks() if re.search(arguments.only, str(b))][:: arguments.every]
    if arguments.list:
        print("\n".join(map(str, chosen)))
        return 0
    for name in [name for name in sys.modules if name.partition(".")[0] in IMPORTED_AGAIN]:
        del sys.modules[name]
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        jobs = [job(Path(folder) / str(i), chosen[i :: arguments.jobs]) for i in range(arguments.jobs)]
        missed = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in jobs)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
