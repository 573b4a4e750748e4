"""Tasks by the names that a recipe gives them."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from groupwise.data import Ids, Task, Usage
from groupwise.tasks.calculator import Calculator
from groupwise.tasks.problems import Problems


def find_task(name: str, encode: Callable[[str], Ids], **options: Any) -> Task:
    """`calculator`, or a path ending in `.jsonl`, with the options `prompt` and `answer` (fields), `held_out`."""
    if name.endswith(".jsonl"):
        _known_options(name, options, ("prompt", "answer", "held_out"))
        return Problems.read(name, encode, **options)
    if name == "calculator":
        _known_options(name, options, ())
        return Calculator(encode)
    hint = f"write {name}.jsonl" if Path(f"{name}.jsonl").is_file() else nearest(name, ["calculator"])
    raise Usage(f"no task is called {name!r}", fix=f"{hint}, or give the path of a .jsonl file")


def _known_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options.keys() - set(known):
        fix = nearest(option, known) if known else "leave it out"
        raise Usage(f"the task {name} has no option {option!r}", fix=fix)


def nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"take {' or '.join(known)}"
