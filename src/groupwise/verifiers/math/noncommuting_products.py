"""Refuses products that do not commute: of vectors, and of matrices. Runs in the sandbox.

Values are sampled as numbers, whose products commute. So a vector may only be added and multiplied by numbers, and
letters that may be matrices must be in the same order in both expressions.
"""

import re

from groupwise.verifiers.math.expression_trees import Tree, UnknownSymbol, names_of, rational

_MATRIX = re.compile(r"\\hat.*|(?:\\mathcal|\\mathbb)?[A-Z].*")
"""The names of possible matrices, operators and unit vectors."""


def refuse_unordered(gold: Tree, answer: Tree) -> None:
    """Raises `UnknownSymbol` if the values of two expressions may differ though those of numbers are equal."""
    orders = set[tuple[str, str]]()
    for tree in (gold, answer):
        _is_vector(tree)
        orders |= _orders(tree)
        _refuse_inverse(tree, {name for name in names_of(tree) if _MATRIX.fullmatch(name)})
    if any((second, first) in orders for first, second in orders if first != second):
        raise UnknownSymbol


def _is_vector(tree: Tree) -> bool:
    """Whether an expression is a vector; `UnknownSymbol` for a product, power or function of vectors."""
    kind, *parts = tree
    if kind == "name":
        return parts[0].startswith(r"\vec")
    vectors = [_is_vector(part) for part in parts if isinstance(part, tuple)]
    if not any(vectors):
        return False
    zero = kind == "-" and parts[0] == ("number", 0)
    if (
        (kind in "+-" and (all(vectors) or zero))
        or (kind in "*·" and sum(vectors) == 1)
        or (kind == "/" and not vectors[1])
    ):
        return True
    raise UnknownSymbol


def _orders(tree: Tree) -> set[tuple[str, str]]:
    """The pairs of possible matrices of which one is a factor before the other."""
    pairs = set[tuple[str, str]]()
    kind, *parts = tree
    if kind in ("*", "×"):
        left, right = (_factors(part) for part in parts)
        if kind == "×" and any(name.startswith(r"\hat") for name in left + right):
            raise UnknownSymbol
        pairs = {(first, second) for first in left for second in right}
    return pairs.union(*(_orders(part) for part in parts if isinstance(part, tuple)))


def _factors(tree: Tree) -> tuple[str, ...]:
    """The possible matrices that are factors of a product."""
    kind, *parts = tree
    if kind == "name":
        return tuple(name for name in parts if _MATRIX.fullmatch(name))
    if kind in ("*", "×"):
        return _factors(parts[0]) + _factors(parts[1])
    return _factors(parts[0]) if kind == "^" else ()


def _refuse_inverse(tree: Tree, matrices: set[str]) -> None:
    """Raises `UnknownSymbol` for `A^{-1}` beside another capital letter, and for a transpose."""
    kind, *parts = tree
    if kind == "^":
        inside = {name for name in names_of(parts[0]) if _MATRIX.fullmatch(name)}
        power = rational(parts[1])
        if inside and len(matrices) > 1 and power is not None and power < 0:
            raise UnknownSymbol
        if parts[1] == ("name", "T") and (inside or parts[0][0] == "name"):
            raise UnknownSymbol
    for part in parts:
        if isinstance(part, tuple):
            _refuse_inverse(part, matrices)
