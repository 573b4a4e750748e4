"""Verifiers by the names that a recipe gives them, with fields where they have some: `math(answer="first")`."""

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

from groupwise.data import BadData, Task, Usage, Verifier
from groupwise.tasks.calculator import Calculator, calculator_answer
from groupwise.tasks.code import CodeVerifier, code_verifier
from groupwise.tasks.countdown import Countdown
from groupwise.tasks.gym import gym_verifier
from groupwise.tasks.mathematics import Math, MathDapo, MathVerify
from groupwise.tasks.names import nearest
from groupwise.tasks.problems import Problems
from groupwise.tasks.sandbox import Sandbox
from groupwise.tasks.verifiers import exact, is_number, is_plain, last_number

PLAIN: dict[str, Verifier] = {"calculator_answer": calculator_answer, "exact": exact, "last_number": last_number}
MADE: dict[str, Callable[..., Verifier]] = {
    "countdown": Countdown,
    "math": Math,
    "math_dapo": MathDapo,
    "math_verify": MathVerify,
}
"""Verifiers with fields; each is made anew, with its defaults where the name stands alone."""

Own = Callable[[str], Verifier]
"""What makes a verifier of `my_file:grade`."""


def verifier_names() -> list[str]:
    return sorted((*PLAIN, *MADE, "code", "reasoning_gym"))


def own_names(text: str) -> list[str]:
    """The functions of one's own files in a verifier's name.

    >>> own_names("my_file:grade"), own_names("math(answer='last')")
    (['my_file:grade'], [])
    """
    return [text] if re.fullmatch(r"[\w.-]+:[\w.]+", text) else []


def find_verifier(
    name: str,
    task: Task | None,
    sandbox: Callable[[], Sandbox] = Sandbox,
    *,
    own: Own | None = None,
    deadline: float = 10.0,
) -> Verifier:
    """A verifier that can judge this task's answers; `BadData` where a gold answer is not what it compares with.

    Without a task nothing is asked of gold answers. `code` judges in the `sandbox` that is made for it alone,
    `reasoning_gym` in at most `deadline` seconds.
    """
    if name == "code":
        return CodeVerifier(sandbox()) if task is None else code_verifier(task, sandbox)
    if name == "reasoning_gym" and task is not None:
        return gym_verifier(task, deadline)
    if name == "calculator_answer" and task is not None and not isinstance(task, Calculator):
        raise Usage("calculator_answer judges the task calculator alone", fix="take exact or last_number")
    if own_names(name):
        return _own(name, own)
    verifier = _read(name)
    if isinstance(task, Problems):
        fits, expected = FITS.get(name) or (getattr(verifier, "fits", _anything), getattr(verifier, "expects", ""))
        for prompt in (*task.training, *task.held_out):
            if not fits(gold := prompt.given["answer"]):
                seen = f"{prompt.id}: {str(gold)[:80]}"
                raise BadData(f"{name} compares with {expected}", evidence=seen, fix="mend it, or use another verifier")
    return verifier


FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "exact": (is_plain, "text or a number"),
    "last_number": (is_number, "a number"),
}


def _anything(gold: Any) -> bool:
    return True


def _own(name: str, own: Own | None) -> Verifier:
    if own is None:
        raise Usage(f"{name!r} is a function in a file", fix=f"add --use {name.partition(':')[0]}.py to the command")
    return own(name)


def _read(text: str) -> Verifier:
    """The verifier that the text names: a name, or a name with fields as a call has them."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if isinstance(tree, ast.Name):
        return _made(tree.id, {})
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
        return _made(tree.func.id, dict(_field(keyword, tree.func.id) for keyword in tree.keywords))
    hint = f"{nearest(text, verifier_names())}, or my_file:grade with --use"
    raise Usage(f"no verifier is called {text!r}", fix=f"{hint}; fields are written as in math(answer='first')")


def _field(keyword: ast.keyword, name: str) -> tuple[str, Any]:
    try:
        assert keyword.arg is not None, "** is no field"
        return keyword.arg, ast.literal_eval(keyword.value)
    except (ValueError, AssertionError):
        seen = ast.unparse(keyword)[:80]
        raise Usage(f"{name}: a field is a plain value", evidence=seen, fix="write text in quotation marks") from None


def _made(name: str, given: dict[str, Any]) -> Verifier:
    if name in PLAIN and not given:
        return PLAIN[name]
    if name not in MADE:
        if name in PLAIN:
            raise Usage(f"the verifier {name} has no field {next(iter(given))!r}", fix=f"write {name} alone")
        hint = f"{nearest(name, verifier_names())}, or my_file:grade with --use"
        raise Usage(f"no verifier is called {name!r}", fix=hint)
    known = inspect.signature(MADE[name]).parameters
    for field in given:
        if field not in known:
            raise Usage(f"the verifier {name} has no field {field!r}", fix=nearest(field, list(known)))
    try:
        return MADE[name](**given)
    except (TypeError, ValueError) as error:
        raise Usage(f"the verifier {name} cannot be made", evidence=str(error), fix="mend its fields") from None
