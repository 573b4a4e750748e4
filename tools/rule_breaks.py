"""Breaks of the code of methods, made by rule: one expression, number or keyword of a function at a time."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from types import ModuleType

from groupwise.config.registry import definition_of, methods
from groupwise.data import Segments, with_fields
from groupwise.learner import make_plan
from groupwise.methods import Method
from groupwise.objective import Objective
from groupwise.rollout.rollout_buffer import RolloutBuffer, eligible_answers
from groupwise.training.loop import compute_advantages

FORMULA = ("filter", "shaping", "advantage", "credit", "mask", "objective", "auxiliary_losses", "states")
"""Fields of a method that its transcription and the laws cover; strategies and curricula have other tests."""
SHARED = (Segments, eligible_answers, RolloutBuffer._marked, compute_advantages, make_plan, Objective)
"""What every method runs."""
LEFT_OUT = ("__post_init__", "clipped", "notes", "needs", "_refuse_scores", "_also_trained", "_in_lanes")
"""Functions that compute no number of a formula: checks of fields, metrics, names, the lanes of several ranks."""
KEYWORDS_LEFT_OUT = ("curriculum", "strategy", "models", "max_refills", "denoise", "unmask")
"""What sampling and the models of a run are, which the tests of strategies and side models cover."""
SWAPPED = {
    "minimum": "maximum", "maximum": "minimum", "total": "mean", "mean": "total", "live": "count", "count": "live",
    "largest": "total", "correct": "wrong", "logp_old": "logp", "length": "limit", "score": "reward",
}  # fmt: skip
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.Lt: ">", ast.Gt: "<", ast.LtE: ">", ast.GtE: "<",
    ast.Eq: "!=", ast.NotEq: "==", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuleBreak:
    """A module with one change, and the methods whose certificates have to notice it, one of them at least."""

    module: str
    where: str
    """The definition, its line, and the rule."""
    function: str
    """The name of the function or class that is changed."""
    source: str
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module.removeprefix('groupwise.')}: {self.where} -> {self.methods[0]}"


def all_breaks() -> list[RuleBreak]:
    """The breaks of parts, those of the path that all methods share, then those of the methods' own functions."""
    found: dict[tuple[str, str], RuleBreak] = {}
    for thing, users in things().items():
        for module, definition in definitions_of(thing):
            text = text_of(module)
            sites = [(what, node, new) for node in sites_of(definition) for what, new in changes(node, text)]
            for b in broken(module, definition, sites, users):
                found.setdefault((b.module, b.source), b)
    for name, publish in methods().items():
        module, function = next(x for x in definitions_of(publish) if x[1].name == name)
        assert isinstance(function, ast.FunctionDef)
        found |= {(b.module, b.source): b for b in broken(module, function, list(constants(function)), (name,))}
    return list(found.values())


def things() -> dict[Callable[..., object], tuple[str, ...]]:
    """Each part of a formula with the methods that use it, then what all methods use."""
    users: dict[Callable[..., object], tuple[str, ...]] = {}
    for name, publish in methods().items():
        method = publish()
        parts = with_fields(tuple(getattr(method, field) for field in FORMULA))
        kinds = {definition_of(part) for part in parts if callable(definition_of(part))}
        for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__)):
            if kind.__module__.startswith("groupwise") and kind not in SHARED:
                users[kind] = (*users.get(kind, ()), name)
    return users | dict.fromkeys(SHARED, tuple(methods()))


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


def constants(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, str]]:
    """Breaks of a method's function: another number for a default, and a keyword left out that is not the default."""
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults):
        if isinstance(default, ast.Constant) and type(default.value) in (int, float):
            yield f"another {argument.arg}", default, repr(2 * ast.literal_eval(default) or 1)
    bare, method = Method(), methods()[function.name]()
    pairs = ((bare, method), (bare.objective, method.objective))
    same = {f.name for old, new in pairs for f in fields(old) if getattr(old, f.name) == getattr(new, f.name)}
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Method", "Objective"):
            for keyword in call.keywords:
                if keyword.arg and keyword.arg not in {*KEYWORDS_LEFT_OUT, *same}:
                    yield f"{keyword.arg} left out", keyword, "**{}"


def sites_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a definition that may be broken, in order."""
    if isinstance(tree, ast.FunctionDef) and tree.name in LEFT_OUT:
        return
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.Assert):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from sites_of(node)


def definitions_of(thing: Callable[..., object]) -> list[tuple[ModuleType, ast.FunctionDef | ast.ClassDef]]:
    """A function or class with the other definitions of its file that it uses; a class's function alone."""
    module = sys.modules[thing.__module__]
    tree = ast.parse(inspect.getsource(module))
    if "." in thing.__qualname__:
        return [(module, x) for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name == thing.__name__]
    known = {x.name: x for x in tree.body if isinstance(x, ast.FunctionDef | ast.ClassDef)}
    names, found = [thing.__name__], dict[str, ast.FunctionDef | ast.ClassDef]()
    while names:
        name = names.pop()
        if name in known and name not in found:
            found[name] = known[name]
            names += [node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)]
    return [(module, x) for x in found.values()]


def text_of(module: ModuleType) -> Callable[[ast.AST], str]:
    source = inspect.getsource(module)
    return lambda node: ast.get_source_segment(source, node) or ""


def broken(
    module: ModuleType,
    definition: ast.FunctionDef | ast.ClassDef,
    sites: Sequence[tuple[str, ast.AST, str]],
    users: tuple[str, ...],
) -> Iterator[RuleBreak]:
    """The breaks of one definition."""
    lines = inspect.getsource(module).encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    whole = b"\n".join(lines)
    for what, node, text in sites:
        first = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        last = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        where = f"{definition.name}, line {node.lineno}: {what}"  # type: ignore[attr-defined]
        new = whole[:first] + text.encode() + whole[last:]
        if new != whole:
            yield RuleBreak(module.__name__, where, definition.name, new.decode(), users)
