"""Converts a user's reward functions, in a file or in memory, to a recipe's verifier."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.api.function_source import file_source
from groupwise.config.recipe_toml import plain
from groupwise.core import Usage
from groupwise.data import VerifierSettings
from groupwise.runs.atomic_writes import storage_errors, write_file
from groupwise.verifiers.reward_argument_of_verifier import WRITTEN

Grade = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Reward:
    """A converted reward: the TOML data of the recipe's field `verifier`, and the Python functions that it names.

    `source_code` is the text of `code/reward.py`, "" without such functions. `functions_in_memory` are functions that
    stay in this process, by name.
    """

    verifier_toml: Any
    source_code: str = ""
    functions_in_memory: Mapping[str, Grade] = field(default_factory=dict)


NO_REWARD = Reward("")


def write_code(grades: Reward, folder: Path) -> list[Path]:
    """Write the reward functions to `folder/reward.py`. Returns the files to load; none without functions."""
    if not grades.source_code:
        return []
    path = folder / f"{WRITTEN}.py"
    with storage_errors(path.name, folder.parent):
        folder.mkdir(exist_ok=True)
        write_file(path, grades.source_code.encode())
    return [path]


def reward_of(reward: object) -> Reward:
    """Convert the argument `reward`: a name, a verifier, a function, or a dict of them with weights.

    The first entry of a dict such as `{"short": (0.1, brevity)}` gives the outcome, and the score is the weighted mean.
    A dict with `kind` is a verifier as a recipe writes it. Raises `Usage` for anything else.

    >>> reward_of({"right": "math", "short": (0.5, len)}).verifier_toml["members"][1]
    {'name': 'short', 'verifier': {'kind': 'Function', 'name': 'len', 'file': ''}, 'weight': 0.5}
    """
    sources: dict[str, str] = {}
    in_memory: dict[str, Grade] = {}
    data = _data(reward, sources, in_memory)
    return Reward(data, "\n\n".join(sources.values()), in_memory)


def _data(reward: object, sources: dict[str, str], in_memory: dict[str, Grade]) -> Any:
    """A reward as TOML data. Each function in it is also added to `sources` or `in_memory`."""
    if isinstance(reward, VerifierSettings):
        return plain(reward, VerifierSettings)
    if isinstance(reward, Mapping) and "kind" in reward:
        return {str(name): _value(value, sources, in_memory) for name, value in reward.items()}
    if isinstance(reward, Mapping):
        members = [_member(str(name), value, sources, in_memory) for name, value in reward.items()]
        return {"kind": "Combined", "members": members}
    if isinstance(reward, str):
        return reward
    if callable(reward):
        return _function(reward, sources, in_memory)
    fix = "pass a function, the name of a verifier such as math, or a dict of both"
    raise Usage(f"reward is {type(reward).__name__}", evidence=repr(reward)[:80], fix=fix)


def _value(value: object, sources: dict[str, str], in_memory: dict[str, Grade]) -> Any:
    """The value of a field of a verifier, in which functions and verifiers become data."""
    if isinstance(value, list | tuple):
        return [_value(item, sources, in_memory) for item in value]
    return _data(value, sources, in_memory) if isinstance(value, Mapping) or callable(value) else value


def _member(name: str, value: object, sources: dict[str, str], in_memory: dict[str, Grade]) -> dict[str, Any]:
    weight, grade = value if isinstance(value, tuple) and len(value) == 2 else (1.0, value)
    if not name.isidentifier() or isinstance(weight, bool) or not isinstance(weight, int | float):
        fix = 'write names and weights as in reward={"right": "math", "short": (0.1, brevity)}'
        what = f"the reward {name!r} needs a Python identifier as its name and a number as its weight"
        raise Usage(what, evidence=repr(value)[:80], fix=fix)
    return {"name": name, "verifier": _data(grade, sources, in_memory), "weight": weight}


def _function(grade: Grade, sources: dict[str, str], in_memory: dict[str, Grade]) -> dict[str, str]:
    """The verifier `Function` for a Python function."""
    name = getattr(grade, "__name__", type(grade).__name__)
    name = name if name.isidentifier() else WRITTEN
    source = file_source(grade)
    if name in sources or name in in_memory:
        raise Usage(f"two rewards have the name {name}", fix="rename one of the functions")
    if source is not None:
        sources[name] = source
        return {"kind": "Function", "name": name, "file": f"code/{WRITTEN}.py"}
    in_memory[name] = grade
    return {"kind": "Function", "name": name, "file": ""}
