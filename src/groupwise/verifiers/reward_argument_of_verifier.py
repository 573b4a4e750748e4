"""The argument `reward` of a call of the library that gives the verifier of a recipe, as Python."""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

WRITTEN = "reward"
"""The name, without `.py`, of the file with the reward functions that the library writes to `code` in a run."""


def python_reward(data: Any, written: Collection[str] = (WRITTEN,)) -> str:
    """The argument `reward` for a verifier as a recipe writes it. `written` are files that the library wrote.

    Functions of the calling program, and those in the files `written`, are given by their Python names.

    >>> members = [{"name": "right", "verifier": {"kind": "Math", "use_algebra": False}}]
    >>> members += [{"name": "short", "verifier": {"kind": "Function", "name": "brief", "file": ""}, "weight": 0.5}]
    >>> python_reward({"kind": "Combined", "members": members})
    '{"right": {"kind": "Math", "use_algebra": False}, "short": (0.5, brief)}'
    """
    if isinstance(data, list):
        return f"[{', '.join(python_reward(item, written) for item in data)}]"
    if not isinstance(data, Mapping):
        return json.dumps(data) if isinstance(data, str) else repr(data)
    if data.get("kind") == "Function":
        stem = Path(data["file"]).stem
        return data["name"] if stem in ("", *written) else json.dumps(f"{stem}:{data['name']}")
    values = {name: python_reward(value, written) for name, value in data.items()}
    if data.get("kind") == "Combined":
        weighted = [(m["name"], python_reward(m["verifier"], written), m.get("weight", 1.0)) for m in data["members"]]
        values = {name: text if weight == 1 else f"({weight!r}, {text})" for name, text, weight in weighted}
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in values.items()) + "}"


def table_of(value: Any) -> Any:
    """A verifier's settings as a recipe writes them.

    >>> from groupwise.verifiers import Function
    >>> table_of(Function("brief"))
    {'kind': 'Function', 'name': 'brief', 'file': ''}
    """
    if isinstance(value, tuple):
        return [table_of(item) for item in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    table = {f.name: table_of(getattr(value, f.name)) for f in fields(value)}
    from groupwise.data import VerifierSettings  # late: it imports torch, which python_reward does not need

    if not isinstance(value, VerifierSettings):
        return table
    return {"kind": type(value).__name__, **table} if table else type(value).__name__
