"""Generated problems of the package reasoning-gym, by `reasoning_gym:NAME`, judged by its own scorers."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import replace

from groupwise.data import Prompt, Sample, Task, Usage, Verdict, Verifier
from groupwise.tasks.gym import generator
from groupwise.verifiers.functions import grade_function
from groupwise.verifiers.gym.score import score

RUNS = ("eval", "exec", "compile", "parse_expr", "sympify", "simplify", "parse_latex", "lambdify")
"""Calls that run what they are given as Python, those of sympy among them."""


class GymScore:
    """reasoning-gym's own score of an answer, in processes that can be killed.

    The answer is what stands in the last `<answer>...</answer>`, else all of it. Right at a score of 1.
    """

    keeps_time = True

    def __init__(self, deadline: float) -> None:
        # Unwrapped: its file is looked for, and checks may have been put around it.
        self._judge = grade_function(inspect.unwrap(score), deadline=deadline)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await self._judge(replace(prompt, given={"answer": prompt.given["entry"]}), sample)


def gym_verifier(task: Task, deadline: float) -> Verifier:
    """The scorer of a generator. `Usage` where it would run an answer as Python: no text of a model is ever run."""
    entry = next((p.given.get("entry") for p in task.held_out), None)
    if entry is None:
        raise Usage("reasoning_gym judges its own problems alone", fix="take --task reasoning_gym:NAME")
    if found := runs_answers(type(generator(entry["data_set"]))):
        what = f"reasoning-gym's own scorer of {entry['data_set']} would run answers as Python"
        raise Usage(what, evidence=f"it calls {found}", fix="say --verifier exact, or one of your own with --use")
    return GymScore(deadline)


def runs_answers(data_set: type) -> str:
    """The first call in a generator's scorer, or in what that calls in its file, that runs text; empty if none does.

    Read from the source: what a scorer calls in other files is not seen.
    """
    scorer = next(c for c in data_set.__mro__ if "score_answer" in vars(c))
    tree = ast.parse(inspect.getsource(inspect.getmodule(scorer) or scorer))
    bodies = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name not in RUNS}
    open_, done = ["score_answer"], set()
    while open_:
        name = open_.pop()
        done.add(name)
        for called in _called(bodies[name]):
            if called in RUNS and not _own(tree, called):
                return called
            if called in bodies and called not in done:
                open_.append(called)
    return ""


def _called(body: ast.AST) -> Iterator[str]:
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name


def _own(tree: ast.AST, name: str) -> bool:
    """Whether the file itself defines a function of that name."""
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in ast.walk(tree))
