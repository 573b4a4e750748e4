"""Builds verifiers from their names in a recipe, optionally with fields: `math(answer="first")`."""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from groupwise.core import BadData, InvalidValue, Usage
from groupwise.data import ChecksGold, Task, VerdictContents, Verifier, contents_of
from groupwise.sandbox.sandbox import Sandbox
from groupwise.tasks.beads import Beads
from groupwise.tasks.calculator import Calculator, calculator_answer
from groupwise.tasks.deduction import Deduction
from groupwise.tasks.edges import Edges
from groupwise.tasks.judge_access import JudgeAccess
from groupwise.tasks.problems import Problems
from groupwise.tasks.quilts import Quilts
from groupwise.tasks.registry import nearest
from groupwise.tasks.rings import Rings
from groupwise.tasks.sums import Sums
from groupwise.verifiers.beads import bead_string
from groupwise.verifiers.code import CodeVerifier, code_verifier
from groupwise.verifiers.countdown import Countdown
from groupwise.verifiers.expression import SEVERAL, USER_FUNCTION, WRAPPED, parse, split_weight
from groupwise.verifiers.figures import FigureVerifier
from groupwise.verifiers.flipping import Flipping
from groupwise.verifiers.flow_states import quilt_patches, ring_direction
from groupwise.verifiers.formats import Format, JsonSchema, Regex
from groupwise.verifiers.glyphs import GlyphVerifier
from groupwise.verifiers.gym import gym_verifier
from groupwise.verifiers.hackable import Hackable
from groupwise.verifiers.llm_judge import LLMJudge
from groupwise.verifiers.math import Math, MathDapo, MathDrGrpo, MathVerify
from groupwise.verifiers.numbers import exact, is_number, is_plain, last_number
from groupwise.verifiers.proof_steps import ProofSteps
from groupwise.verifiers.several import Member, Several
from groupwise.verifiers.spanning_graph import SpanningGraph
from groupwise.verifiers.sum_proposal import SumProposal
from groupwise.verifiers.sum_steps import SumSteps
from groupwise.verifiers.text import Choice, Text

__all__ = ["find_verifier", "packaged_contents", "verifier_names"]

FUNCTIONS: dict[str, Verifier] = {
    "bead_string": bead_string,
    "calculator_answer": calculator_answer,
    "exact": exact,
    "last_number": last_number,
    "quilt_patches": quilt_patches,
    "ring_direction": ring_direction,
}
"""Verifiers without fields."""
CLASSES: dict[str, Callable[..., Verifier]] = {
    "choice": Choice,
    "countdown": Countdown,
    "format": Format,
    "glyphs": GlyphVerifier,
    "figures": FigureVerifier,
    "json_schema": JsonSchema,
    "judge": LLMJudge,
    "math": Math,
    "math_dapo": MathDapo,
    "math_dr_grpo": MathDrGrpo,
    "math_verify": MathVerify,
    "proof_steps": ProofSteps,
    "regex": Regex,
    "spanning_graph": SpanningGraph,
    "sum_proposal": SumProposal,
    "sum_steps": SumSteps,
    "text": Text,
}
"""Verifiers with fields. Each use creates a new one; a name without fields takes the defaults."""
WRAPPERS: dict[str, Callable[..., Verifier]] = {"flipping": Flipping, "hackable": Hackable}
"""Verifiers that change the verdicts of another verifier, which their argument `verifier` names."""
OF_TASKS: dict[str, tuple[type, ...]] = {
    "bead_string": (Beads,),
    "calculator_answer": (Calculator, Sums),
    "proof_steps": (Deduction,),
    "quilt_patches": (Quilts,),
    "ring_direction": (Rings,),
    "spanning_graph": (Edges,),
    "sum_proposal": (Calculator, Sums),
    "sum_steps": (Calculator, Sums),
}
"""Verifiers that grade packaged tasks only, and the types of these tasks."""

FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "exact": (is_plain, "text or a number"),
    "last_number": (is_number, "a number"),
}
"""For verifiers that are functions: a test of gold answers, and which ones it accepts. Classes have `fits` instead."""

Load = Callable[[str], Verifier]
"""Makes a verifier from the name of a user's function, `my_file:grade`."""


def verifier_names() -> list[str]:
    """The names of all packaged verifiers."""
    return sorted((*FUNCTIONS, *CLASSES, *WRAPPERS, SEVERAL, "code", "reasoning_gym"))


def packaged_contents() -> dict[str, VerdictContents | None]:
    """What the verdicts of the packaged verifiers contain, by name; without those that combine or wrap others.

    >>> packaged_contents()["sum_steps"].feedback, packaged_contents()["last_number"]
    (True, VerdictContents(subscores=(), feedback=False))
    """
    verifiers = FUNCTIONS | CLASSES | {"code": CodeVerifier}
    return {name: contents_of(verifier) for name, verifier in sorted(verifiers.items())}


def find_verifier(
    name: str,
    task: Task | None,
    sandbox: Callable[..., Sandbox] = Sandbox,
    *,
    load: Load | None = None,
    judges: JudgeAccess = JudgeAccess(),  # noqa: B008
    deadline: float = 10.0,
) -> Verifier:
    """The named verifier for this task's answers. `BadData` if it cannot compare with one of the gold answers.

    Without a task, gold answers are not checked. `sandbox` is called with keywords of `Sandbox`, once per verifier
    that needs one (`code` and those of mathematics). `load` makes verifiers from a user's functions. `judges` is the
    access of `judge`; by default it reaches this machine only. `deadline`, in seconds, applies to `reasoning_gym` and
    to members of `several`.
    """
    return _Builder(task, sandbox, load, judges, deadline).build(name)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the verifiers of one task."""

    task: Task | None
    sandbox: Callable[..., Sandbox]
    load: Load | None
    judges: JudgeAccess
    deadline: float

    def build(self, text: str) -> Verifier:
        """A verifier from its text: a name, a call of a name with fields, or a user's function."""
        if USER_FUNCTION.fullmatch(text):
            if self.load is None:
                fix = f"add --use {text.partition(':')[0].removesuffix('.py')}.py to the command"
                raise Usage(f"{text!r} is a function in a file", fix=fix)
            return self.load(text)
        tree = parse(text)
        if tree is None:
            raise _unknown(text, "; fields are written as in math(answer='first')")
        return self.from_tree(tree)

    def from_tree(self, tree: ast.expr) -> Verifier:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
            return self.build(tree.value)
        if isinstance(tree, ast.Name):
            return self.several([]) if tree.id == SEVERAL else self.named(tree.id, {})
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            if tree.func.id == SEVERAL:
                return self.several(tree.keywords)
            return self.named(tree.func.id, dict(self.field(keyword, tree.func.id) for keyword in tree.keywords))
        raise _unknown(ast.unparse(tree), "; fields are written as in math(answer='first')")

    def field(self, keyword: ast.keyword, name: str) -> tuple[str, Any]:
        """A field and its value: a verifier for the field `verifier` of a wrapper, else a plain value."""
        if name in WRAPPERS and keyword.arg == WRAPPED:
            return WRAPPED, self.from_tree(keyword.value)
        return _field(keyword, name)

    def several(self, keywords: Sequence[ast.keyword]) -> Verifier:
        """Build `several(answer=math, shape=0.2 * format)`, a weighted mean; the first member gives the outcome."""
        members = []
        for keyword in keywords:
            weight, tree = split_weight(keyword.value)
            if keyword.arg is None or not (0 < weight < inf):
                fix = "write it as in several(answer=math, shape=0.2 * format)"
                raise Usage(
                    "each verifier in several(...) needs a name, and a weight above 0 if one is given",
                    evidence=ast.unparse(keyword)[:80],
                    fix=fix,
                )
            members.append(Member(keyword.arg, self.from_tree(tree), weight))
        if len(members) < 2:
            raise Usage(
                "several(...) combines fewer than two verifiers",
                fix="write two or more: several(answer=math, shape=0.2 * format)",
            )
        return Several(members, self.deadline)

    def named(self, name: str, fields: Mapping[str, Any]) -> Verifier:
        """The verifier with this name and these fields, after a check of the task's gold answers."""
        if name == "code" and not fields:
            return CodeVerifier(self.sandbox()) if self.task is None else code_verifier(self.task, self.sandbox)
        if name == "reasoning_gym" and not fields and self.task is not None:
            return gym_verifier(self.task, self.deadline)
        if self.task is not None and not isinstance(self.task, OF_TASKS.get(name, object)):
            raise Usage(
                f"the verifier {name} grades answers of its packaged tasks only", fix="take exact or last_number"
            )
        fields = self.judges.grant(fields) if name == "judge" else fields
        verifier = _create(name, fields, self.sandbox)
        if isinstance(self.task, Problems):
            declared = (verifier.fits, verifier.expects) if isinstance(verifier, ChecksGold) else (_anything, "")
            fits, expected = FITS.get(name) or declared
            for prompt in (*self.task.training, *self.task.held_out):
                if not fits(gold := prompt.row.get("answer")):
                    evidence, fix = f"{prompt.id}: {str(gold)[:80]}", "correct this row, or use another verifier"
                    raise BadData(f"{name} needs a gold answer that is {expected}", evidence=evidence, fix=fix)
        return verifier


def _unknown(name: str, more: str = "") -> Usage:
    own = "for your own function, write my_file:grade and add --use my_file.py"
    return Usage(f"no verifier is called {name!r}", fix=f"{nearest(name, verifier_names())}\n{own}{more}")


def _anything(gold: Any) -> bool:
    return True


def _field(keyword: ast.keyword, name: str) -> tuple[str, Any]:
    try:
        assert keyword.arg is not None, "** is no field"
        return keyword.arg, ast.literal_eval(keyword.value)
    except (ValueError, AssertionError):
        text = ast.unparse(keyword)[:80]
        raise Usage(
            f"{name}: an argument must be a plain value", evidence=text, fix="write text in quotation marks"
        ) from None


PLAIN_TYPES: dict[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    str: (str, "text"),
}
"""For each annotation of a field: the types that the field accepts, and their name in messages."""


def _create(name: str, fields: Mapping[str, Any], sandbox: Callable[..., Sandbox]) -> Verifier:
    """The verifier with this name and these fields; `Usage` for unknown or missing ones."""
    if name in FUNCTIONS and not fields:
        return FUNCTIONS[name]
    classes = CLASSES | WRAPPERS
    if name not in classes:
        if name in verifier_names():
            raise Usage(
                f"the verifier {name} has no field {next(iter(fields), '')!r}", fix=f"write {name} without fields"
            )
        raise _unknown(name)
    parameters = dict(inspect.signature(classes[name]).parameters)
    sandboxes = {"sandbox": sandbox} if parameters.pop("sandbox", None) else {}
    for field, value in fields.items():
        if field not in parameters:
            raise Usage(f"the verifier {name} has no field {field!r}", fix=nearest(field, list(parameters)))
        accepted, kind = PLAIN_TYPES.get(parameters[field].annotation, (object, ""))
        if not isinstance(value, accepted) or (accepted is not bool and kind and isinstance(value, bool)):
            raise Usage(f"{name}({field}={value!r}) has a value of a wrong type", fix=f"{field} must be {kind}")
    if missing := [p.name for p in parameters.values() if p.default is p.empty and p.name not in fields]:
        raise Usage(f"the verifier {name} needs {' and '.join(missing)}", fix=f"write {name}({missing[0]}=..., ...)")
    try:
        return classes[name](**fields, **sandboxes)
    except InvalidValue as error:
        raise Usage(f"the verifier {name} cannot be created", evidence=error.what, fix=error.fix) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise Usage(
            f"the verifier {name} cannot be created", evidence=str(error), fix="correct its arguments"
        ) from None
