"""Verifiers by the names that a recipe gives them, with fields where they have some: `math(answer="first")`."""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from groupwise.data import BadData, Task, Usage, Verifier
from groupwise.sandbox.sandbox import Sandbox
from groupwise.tasks.calculator import Calculator, calculator_answer
from groupwise.tasks.judge_access import JudgeAccess
from groupwise.tasks.problems import Problems
from groupwise.tasks.registry import nearest
from groupwise.verifiers.code import CodeVerifier, code_verifier
from groupwise.verifiers.countdown import Countdown
from groupwise.verifiers.formats import Format, JsonSchema, Regex
from groupwise.verifiers.gym import gym_verifier
from groupwise.verifiers.llm_judge import LLMJudge
from groupwise.verifiers.math import Math, MathDapo, MathDrGrpo, MathVerify
from groupwise.verifiers.numbers import exact, is_number, is_plain, last_number
from groupwise.verifiers.several import Member, Several
from groupwise.verifiers.text import Choice, Text

__all__ = ["find_verifier", "own_names", "verifier_names"]

PLAIN: dict[str, Verifier] = {"calculator_answer": calculator_answer, "exact": exact, "last_number": last_number}
MADE: dict[str, Callable[..., Verifier]] = {
    "choice": Choice,
    "countdown": Countdown,
    "format": Format,
    "json_schema": JsonSchema,
    "judge": LLMJudge,
    "math": Math,
    "math_dapo": MathDapo,
    "math_dr_grpo": MathDrGrpo,
    "math_verify": MathVerify,
    "regex": Regex,
    "text": Text,
}
"""Verifiers with fields; each is made anew, with its defaults where the name stands alone."""
TOGETHER = "several"

FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "exact": (is_plain, "text or a number"),
    "last_number": (is_number, "a number"),
}
"""What plain functions compare with; one with fields says it itself, as `fits` and `expects`."""

Own = Callable[[str], Verifier]
"""What makes a verifier of `my_file:grade`."""


def verifier_names() -> list[str]:
    return sorted((*PLAIN, *MADE, TOGETHER, "code", "reasoning_gym"))


def own_names(text: str) -> list[str]:
    """The functions of one's own files in a verifier's name.

    >>> own_names("my_file:grade"), own_names("math(answer='last')"), own_names("several(a=math, b=0.1*'my_file:b')")
    (['my_file:grade'], [], ['my_file:b'])
    """
    if _OWN.fullmatch(text):
        return [text]
    tree = _tree(text)
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == TOGETHER):
        return []
    named = [_weighed(keyword.value)[1] for keyword in tree.keywords]
    return [
        n.value for n in named if isinstance(n, ast.Constant) and isinstance(n.value, str) and _OWN.fullmatch(n.value)
    ]


def find_verifier(
    name: str,
    task: Task | None,
    sandbox: Callable[..., Sandbox] = Sandbox,
    *,
    own: Own | None = None,
    judges: JudgeAccess = JudgeAccess(),  # noqa: B008
    deadline: float = 10.0,
) -> Verifier:
    """A verifier that can judge this task's answers; `BadData` where a gold answer is not what it compares with.

    Without a task nothing is asked of gold answers. `sandbox` makes the boxes that `code` and the verifiers of
    mathematics judge in, each its own: it is called with keywords of `Sandbox`. `reasoning_gym` judges in at most
    `deadline` seconds. `judges` is what `judge` may reach; by default only this machine.
    """
    return _Maker(task, sandbox, own, judges, deadline).made(name)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes verifiers for one task."""

    task: Task | None
    sandbox: Callable[..., Sandbox]
    own: Own | None
    judges: JudgeAccess
    deadline: float

    def made(self, text: str) -> Verifier:
        """The verifier that the text names: a name, a name with fields as a call has them, or one's own function."""
        if _OWN.fullmatch(text):
            if self.own is None:
                fix = f"add --use {text.partition(':')[0]}.py to the command"
                raise Usage(f"{text!r} is a function in a file", fix=fix)
            return self.own(text)
        tree = _tree(text)
        if tree is None:
            raise _unknown(text, "; fields are written as in math(answer='first')")
        return self.read(tree)

    def read(self, tree: ast.expr) -> Verifier:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
            return self.made(tree.value)
        if isinstance(tree, ast.Name):
            return self.several([]) if tree.id == TOGETHER else self.called(tree.id, {})
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            if tree.func.id == TOGETHER:
                return self.several(tree.keywords)
            return self.called(tree.func.id, dict(_field(keyword, tree.func.id) for keyword in tree.keywords))
        raise _unknown(ast.unparse(tree), "; fields are written as in math(answer='first')")

    def several(self, keywords: Sequence[ast.keyword]) -> Verifier:
        """`several(answer=math, shape=0.2 * format)`: the first says what is right."""
        members = []
        for keyword in keywords:
            weight, tree = _weighed(keyword.value)
            if keyword.arg is None or not (0 < weight < inf):
                fix = "several(answer=math, shape=0.2 * format): names, and weights above 0"
                raise Usage("several verifiers need names and weights", evidence=ast.unparse(keyword)[:80], fix=fix)
            members.append(Member(keyword.arg, self.read(tree), weight))
        if len(members) < 2:
            raise Usage("several: fewer than two verifiers", fix="several(answer=math, shape=0.2 * format)")
        return Several(members, self.deadline)

    def called(self, name: str, given: Mapping[str, Any]) -> Verifier:
        """A verifier by its public name and fields, which can judge the task's answers."""
        if name == "code" and not given:
            return CodeVerifier(self.sandbox()) if self.task is None else code_verifier(self.task, self.sandbox)
        if name == "reasoning_gym" and not given and self.task is not None:
            return gym_verifier(self.task, self.deadline)
        if name == "calculator_answer" and self.task is not None and not isinstance(self.task, Calculator):
            raise Usage("calculator_answer judges the task calculator alone", fix="take exact or last_number")
        fields = self.judges.grant(given) if name == "judge" else given
        verifier = _made(name, fields, self.sandbox)
        if isinstance(self.task, Problems):
            fits, expected = FITS.get(name) or (getattr(verifier, "fits", _anything), getattr(verifier, "expects", ""))
            for prompt in (*self.task.training, *self.task.held_out):
                if not fits(gold := prompt.given["answer"]):
                    seen, fix = f"{prompt.id}: {str(gold)[:80]}", "mend it, or use another verifier"
                    raise BadData(f"{name} compares with {expected}", evidence=seen, fix=fix)
        return verifier


_OWN = re.compile(r"[\w.-]+:[\w.]+")


def _tree(text: str) -> ast.expr | None:
    """A name, or a call of one, as Python reads it; nothing of it is ever run."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        compile(tree, "verifier", "eval")  # a name that stands twice
        return tree.body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _weighed(tree: ast.expr) -> tuple[float, ast.expr]:
    """`0.2 * format` as a weight and what it weighs; 1 where none is written."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) and isinstance(tree.left, ast.Constant):
        weight = tree.left.value
        if isinstance(weight, int | float) and not isinstance(weight, bool):
            return float(weight), tree.right
    return 1.0, tree


def _unknown(name: str, more: str = "") -> Usage:
    hint = f"{nearest(name, verifier_names())}, or my_file:grade with --use"
    return Usage(f"no verifier is called {name!r}", fix=hint + more)


def _anything(gold: Any) -> bool:
    return True


def _field(keyword: ast.keyword, name: str) -> tuple[str, Any]:
    try:
        assert keyword.arg is not None, "** is no field"
        return keyword.arg, ast.literal_eval(keyword.value)
    except (ValueError, AssertionError):
        seen = ast.unparse(keyword)[:80]
        raise Usage(f"{name}: a field is a plain value", evidence=seen, fix="write text in quotation marks") from None


def _made(name: str, given: Mapping[str, Any], sandbox: Callable[..., Sandbox]) -> Verifier:
    if name in PLAIN and not given:
        return PLAIN[name]
    if name not in MADE:
        if name in verifier_names():
            raise Usage(f"the verifier {name} has no field {next(iter(given), '')!r}", fix=f"write {name} alone")
        raise _unknown(name)
    known = dict(inspect.signature(MADE[name]).parameters)
    inside = {"sandbox": sandbox} if known.pop("sandbox", None) else {}
    for field in given:
        if field not in known:
            raise Usage(f"the verifier {name} has no field {field!r}", fix=nearest(field, list(known)))
    if missing := [p.name for p in known.values() if p.default is p.empty and p.name not in given]:
        raise Usage(f"the verifier {name} needs {' and '.join(missing)}", fix=f"write {name}({missing[0]}=..., ...)")
    try:
        return MADE[name](**given, **inside)
    except (TypeError, ValueError, AttributeError) as error:
        raise Usage(f"the verifier {name} cannot be made", evidence=str(error), fix="mend its fields") from None
