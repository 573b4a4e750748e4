"""Converts a user's reward functions, in a file or in memory, to a recipe's verifier."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.api.function_source import file_source
from groupwise.core import Usage
from groupwise.runs.disk import storage_errors, write_file
from groupwise.verifiers.expression import MEMORY, WRITTEN

Grade = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Reward:
    """A converted reward: the text for the recipe's field `verifier`, and the Python functions that it names.

    `source` is the text of `code/reward.py`, "" without such functions. `in_memory` are functions that stay in this
    process, by name.
    """

    verifier: str
    source: str = ""
    in_memory: Mapping[str, Grade] = field(default_factory=dict)


NO_REWARD = Reward("")


def write_code(grades: Reward, folder: Path) -> list[Path]:
    """Write the reward functions to `folder/reward.py`. Returns the files to load; none without functions."""
    if not grades.source:
        return []
    path = folder / f"{WRITTEN}.py"
    with storage_errors(path.name, folder.parent):
        folder.mkdir(exist_ok=True)
        write_file(path, grades.source.encode())
    return [path]


def reward_of(reward: object) -> Reward:
    """Convert the argument `reward`: a name, a function, or a dict of both with weights: `{"short": (0.1, brevity)}`.

    The first entry of a dict gives the outcome, and the score is the weighted mean. Raises `Usage` for anything else.

    >>> reward_of({"right": "math", "short": (0.5, len)}).verifier
    "several(right='math', short=0.5*'memory:len')"
    """
    sources: dict[str, str] = {}
    in_memory: dict[str, Grade] = {}
    if isinstance(reward, Mapping):
        members = [_member(str(name), value, sources, in_memory) for name, value in reward.items()]
        text = f"several({', '.join(members)})"
    else:
        text = _name(reward, sources, in_memory)
    return Reward(text, "\n\n".join(sources.values()), in_memory)


def _member(name: str, value: object, sources: dict[str, str], in_memory: dict[str, Grade]) -> str:
    weight, grade = value if isinstance(value, tuple) and len(value) == 2 else (1.0, value)
    if not name.isidentifier() or isinstance(weight, bool) or not isinstance(weight, int | float):
        fix = 'write names and weights as in reward={"right": "math", "short": (0.1, brevity)}'
        what = f"the reward {name!r} needs a Python identifier as its name and a number as its weight"
        raise Usage(what, evidence=repr(value)[:80], fix=fix)
    text = repr(_name(grade, sources, in_memory))
    return f"{name}={text}" if weight == 1 else f"{name}={weight!r}*{text}"


def _name(grade: object, sources: dict[str, str], in_memory: dict[str, Grade]) -> str:
    """Convert one reward to its name in the verifier's text. A function is also added to `sources` or `in_memory`."""
    if isinstance(grade, str):
        return grade
    if not callable(grade):
        fix = "pass a function, the name of a verifier such as math, or a dict of both"
        raise Usage(f"reward is {type(grade).__name__}", evidence=repr(grade)[:80], fix=fix)
    name = getattr(grade, "__name__", type(grade).__name__)
    name = name if name.isidentifier() else WRITTEN
    source = file_source(grade)
    if name in sources or name in in_memory:
        raise Usage(f"two rewards have the name {name}", fix="rename one of the functions")
    if source is not None:
        sources[name] = source
        return f"{WRITTEN}:{name}"
    in_memory[name] = grade
    return f"{MEMORY}:{name}"
