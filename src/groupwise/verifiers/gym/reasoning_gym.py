"""The verifier `GymScore`: grades generated problems of the package reasoning-gym with its own scorers."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from groupwise.core import Usage
from groupwise.data import Prompt, Sample, Task, Verdict, Verifier, VerifierSettings, verdicts_have
from groupwise.data.verdicts import with_threshold
from groupwise.tasks.reasoning_gym import generator
from groupwise.verifiers.build_verifier import VerifierContext
from groupwise.verifiers.function_verifier import grade_function
from groupwise.verifiers.gym.score import score

__all__ = ["GymScore"]

RUNS = ("eval", "exec", "compile", "parse_expr", "sympify", "simplify", "parse_latex", "lambdify")
"""Functions that execute their argument as Python code, in Python and in sympy."""


@verdicts_have()
@dataclass(frozen=True, slots=True)
class GymScore(VerifierSettings):
    """The score of a problem's generator, in the task `ReasoningGym`. A score of 1 is right (`GymScoreVerifier`)."""

    def build(self, grading: VerifierContext) -> Verifier:
        """The verifier with its worker processes. `Usage` for another task."""
        check_scorer(grading.task)
        return GymScoreVerifier(grading.default_deadline)


@verdicts_have()
class GymScoreVerifier(Verifier):
    """reasoning-gym's score of an answer, computed in worker processes with a deadline in seconds.

    The answer is the content of the last `<answer>...</answer>`, else the whole text. A score of 1 is right.
    """

    has_own_deadline = True

    def __init__(self, deadline: float) -> None:
        # Type checks may wrap the function; the worker needs the file of the function itself.
        self._verifier = grade_function(inspect.unwrap(score), deadline=deadline)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        verdict = await self._verifier(replace(prompt, row={"answer": prompt.row["entry"]}), sample)
        return with_threshold(verdict, 1.0)


def check_scorer(task: Task | None) -> None:
    """Raise `Usage` for a task of another kind, and if the scorer of its generator would execute answers as Python."""
    entry = next((p.row.get("entry") for p in task.held_out), None) if task is not None else None
    if entry is None:
        raise Usage(
            "the verifier GymScore grades problems of the task reasoning_gym only",
            fix="take --task reasoning_gym --task.name NAME",
        )
    if call := runs_answers(type(generator(entry["data_set"], entry["seed"], entry["size"]))):
        what = f"the scorer of reasoning-gym's {entry['data_set']} is refused: it would run answers as Python"
        raise Usage(what, evidence=f"it calls {call}", fix="take --verifier exact, or your function with --use")


def runs_answers(data_set: type) -> str:
    """The name of the first call in a generator's scorer that executes text; empty if there is none.

    It reads the source of the scorer and of the functions that it calls in the same file, and of no other file.
    """
    scorer = next(c for c in data_set.__mro__ if "score_answer" in vars(c))
    tree = ast.parse(inspect.getsource(inspect.getmodule(scorer) or scorer))
    bodies = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name not in RUNS}
    pending, done = ["score_answer"], set()
    while pending:
        name = pending.pop()
        done.add(name)
        for call in _calls(bodies[name]):
            if call in RUNS and not _defines(tree, call):
                return call
            if call in bodies and call not in done:
                pending.append(call)
    return ""


def _calls(body: ast.AST) -> Iterator[str]:
    """The names of the functions that a function's body calls."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name


def _defines(tree: ast.AST, name: str) -> bool:
    """Whether a file defines a function with this name."""
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in ast.walk(tree))
