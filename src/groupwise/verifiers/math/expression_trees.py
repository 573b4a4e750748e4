"""Trees of mathematical expressions: operations, functions, and questions about a tree. Runs in the sandbox."""

from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

Tree = tuple[Any, ...]
"""An expression as a tree: an operation and its operands, as in `("+", ("name", "x"), ("number", Fraction(1)))`."""

OPERATIONS = {"+": add, "-": sub, "*": mul, "·": mul, "×": mul, "/": truediv}
"""The operations of two numbers. A product is written without a sign (`*`), with a dot, or with a cross."""
FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "sec": "sec", "csc": "csc", "cot": "cot",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "arcsinh": "asinh", "ln": "log", "exp": "exp",
}  # fmt: skip
"""The functions that a tree can contain, each with its name in mpmath."""
BASE = "the base of log"
"""The name of the variable for the unknown base of `log`."""


class UnknownSymbol(Exception):
    """Internal exception: the text contains an unknown symbol, or is ambiguous."""


def rational(tree: Tree) -> Fraction | None:
    """The exact value of an expression tree; None if it has symbols, a division by zero or numbers of 1e9 and more."""
    if tree[0] == "number":
        return tree[1] if max(abs(tree[1].numerator), tree[1].denominator) < 10**9 else None
    if tree[0] not in OPERATIONS:
        return None
    left, right = rational(tree[1]), rational(tree[2])
    if left is None or right is None or (tree[0] == "/" and right == 0):
        return None
    return OPERATIONS[tree[0]](left, right)


def names_of(tree: Tree) -> set[str]:
    """The free variables of an expression; an unknown function counts as one, called `f`."""
    if tree[0] == "name":
        return {tree[1]}
    names = {"f"} if tree[0] == "apply" else set[str]()
    return names.union(*(names_of(part) for part in tree[1:] if isinstance(part, tuple)))


def has(tree: Tree, kind: str) -> bool:
    """Whether an expression contains an operation of this kind."""
    return tree[0] == kind or any(has(part, kind) for part in tree[1:] if isinstance(part, tuple))


def has_kink(tree: Tree) -> bool:
    """Whether an expression's formula may change at some point, as with `|x-9|` or the square root of `(x-9)^2`."""
    if tree[0] == "^" and tree[1][0] != "number" and has(tree[1], "^"):
        power = rational(tree[2])
        if power is None or power.denominator > 1:
            return True
    if tree[0] == "abs" or (tree[0] == "call" and tree[1].startswith("arc")):
        return True
    return any(has_kink(part) for part in tree[1:] if isinstance(part, tuple))
