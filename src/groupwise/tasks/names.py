"""Tasks and verifiers by the names that a recipe gives them."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Ids, Task, Usage, Verifier
from groupwise.tasks.calculator import Calculator, calculator_answer
from groupwise.tasks.code import code_verifier
from groupwise.tasks.problems import Problems
from groupwise.tasks.sandbox import Sandbox
from groupwise.tasks.verifiers import exact, is_number, is_plain, last_number

VERIFIERS: dict[str, Verifier] = {
    "calculator_answer": calculator_answer,
    "exact": exact,
    "last_number": last_number,
}


def find_task(name: str, encode: Callable[[str], Ids], **options: Any) -> Task:
    """`calculator`, or a path ending in `.jsonl`, with the options `prompt` and `answer` (fields), `held_out`."""
    if name.endswith(".jsonl"):
        _known_options(name, options, ("prompt", "answer", "held_out"))
        return Problems.read(name, encode, **options)
    if name == "calculator":
        _known_options(name, options, ())
        return Calculator(encode)
    hint = f"write {name}.jsonl" if Path(f"{name}.jsonl").is_file() else _nearest(name, ["calculator"])
    raise Usage(f"no task is called {name!r}", fix=f"{hint}, or give the path of a .jsonl file")


def find_verifier(name: str, task: Task, sandbox: Callable[[], Sandbox] = Sandbox) -> Verifier:
    """A verifier that can judge this task's answers; `BadData` where a gold answer is not what it compares with.

    `code` judges in the `sandbox` that is made for it, and only for it.
    """
    if name == "code":
        return code_verifier(task, sandbox)
    if name not in VERIFIERS and ":" in name:
        raise Usage(f"{name!r} is a function in a file", fix=f"add --use {name.partition(':')[0]}.py to the command")
    if name not in VERIFIERS:
        raise Usage(
            f"no verifier is called {name!r}",
            fix=f"{_nearest(name, [*VERIFIERS, 'code'])}, or my_file:grade with --use",
        )
    if name == "calculator_answer" and not isinstance(task, Calculator):
        raise Usage("calculator_answer judges the task calculator alone", fix="take exact or last_number")
    if isinstance(task, Problems):
        fits, expected = (is_plain, "text or a number") if name == "exact" else (is_number, "a number")
        for prompt in (*task.training, *task.held_out):
            if not fits(gold := prompt.given["answer"]):
                seen = f"{prompt.id}: {str(gold)[:80]}"
                raise BadData(f"{name} compares with {expected}", evidence=seen, fix="mend it, or use another verifier")
    return VERIFIERS[name]


def _known_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options.keys() - set(known):
        fix = _nearest(option, known) if known else "leave it out"
        raise Usage(f"the task {name} has no option {option!r}", fix=fix)


def _nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"take {' or '.join(known)}"
