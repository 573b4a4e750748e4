"""Reads the text that names a verifier in a recipe: a name, a call with fields, or a combination. Nothing is executed.

>>> members("several(right='reward:variety', short=0.5*'memory:brief')")
{'right': (1.0, 'reward:variety'), 'short': (0.5, 'memory:brief')}
"""

import ast
import json
import re
from collections.abc import Collection

__all__ = ["user_functions"]

SEVERAL = "several"
"""The name of a combination of verifiers."""
WRAPPED = "verifier"
"""The field of a verifier that changes the verdicts of another one: the name of the other."""
MEMORY = "memory"
"""Prefix of the names of functions that a program passes to the library in memory: `memory:reward`."""
WRITTEN = "reward"
"""The name, without `.py`, of the file with the reward functions that the library writes to `code` in a run."""
USER_FUNCTION = re.compile(r"[\w./-]+:[\w.]+")
"""The name of a function in a user's file: `my_file:grade`."""


def parse(text: str) -> ast.expr | None:
    """The syntax tree of a verifier's name or call; None for invalid text. The text is never executed."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        compile(tree, "verifier", "eval")  # finds repeated keywords
        return tree.body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def split_weight(tree: ast.expr) -> tuple[float, ast.expr]:
    """The weight and the verifier of `0.2 * format`; the default weight is 1."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) and isinstance(tree.left, ast.Constant):
        weight = tree.left.value
        if isinstance(weight, int | float) and not isinstance(weight, bool):
            return float(weight), tree.right
    return 1.0, tree


def user_functions(text: str) -> list[str]:
    """The names of a user's functions in the text that names a verifier.

    >>> user_functions("my_file:grade"), user_functions("math(answer='last')")
    (['my_file:grade'], [])
    >>> user_functions("several(a=math, b=0.1*flipping(verifier='my_file:b', rejects=0.2))")
    ['my_file:b']
    """
    if USER_FUNCTION.fullmatch(text):
        return [text]
    return _functions_in(parse(text))


def _functions_in(tree: ast.expr | None) -> list[str]:
    """The names of a user's functions among the verifiers in a tree; the values of other fields are left out."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return user_functions(tree.value)
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        return []
    if tree.func.id == SEVERAL:
        parts = [split_weight(keyword.value)[1] for keyword in tree.keywords]
    else:
        parts = [keyword.value for keyword in tree.keywords if keyword.arg == WRAPPED]
    return [name for part in parts for name in _functions_in(part)]


def members(text: str) -> dict[str, tuple[float, str]]:
    """The weight and the text of each verifier in a combination, by its name there; empty for a single verifier."""
    tree = parse(text)
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == SEVERAL):
        return {}
    parts = {keyword.arg or "": split_weight(keyword.value) for keyword in tree.keywords}
    return {name: (weight, _text(part)) for name, (weight, part) in parts.items()}


def _text(tree: ast.expr) -> str:
    return tree.value if isinstance(tree, ast.Constant) and isinstance(tree.value, str) else ast.unparse(tree)


def in_memory(text: str) -> list[str]:
    """The names of the functions in memory that a verifier's text needs.

    >>> in_memory("several(right=math, short=0.5*'memory:brief')")
    ['brief']
    """
    names = [name.partition(":") for name in user_functions(text)]
    return [function for stem, _, function in names if stem == MEMORY]


def python_reward(text: str, written: Collection[str] = (WRITTEN,)) -> str:
    """The argument `reward` of a call of the library that gives this verifier, as Python.

    Functions in memory, and in the files `written` by the library, are given by their Python names.

    >>> python_reward("several(right='math', short=0.5*'memory:brief')")
    '{"right": "math", "short": (0.5, brief)}'
    >>> python_reward("memory:brief"), python_reward("my_file:grade")
    ('brief', '"my_file:grade"')
    """
    if not (parts := members(text)):
        stem, _, function = text.partition(":")
        return function if USER_FUNCTION.fullmatch(text) and stem in (MEMORY, *written) else json.dumps(text)
    values = {name: (weight, python_reward(part, written)) for name, (weight, part) in parts.items()}
    pairs = (f'"{name}": {part if weight == 1 else f"({weight!r}, {part})"}' for name, (weight, part) in values.items())
    return f"{{{', '.join(pairs)}}}"
