"""Names the components of a run's method that compute a token's reward, advantage, clip, weight and share."""

from collections.abc import Mapping
from typing import Any

LINKS = {
    "reward": ("method.shaping",),
    "advantage": ("method.advantage", "method.credit"),
    "clip": ("method.objective.surrogate",),
    "weight": ("method.objective.weights",),
    "share": ("method.objective.aggregate",),
}
"""For each number (reward, advantage, ...), the recipe fields whose components compute it."""


def chain_parts(fields: Mapping[str, Any]) -> dict[str, str]:
    """For each number, the names of the components that compute it, from a recipe's fields; empty if it names none.

    >>> chain_parts({"method.shaping.0.kind": "Score", "method.shaping.0.scale": 1, "method.credit": "every_token"})
    {'reward': 'Score', 'advantage': 'every_token', 'clip': '', 'weight': '', 'share': ''}
    """
    return {link: ", ".join(x for path in paths for x in components_at(fields, path)) for link, paths in LINKS.items()}


def components_at(fields: Mapping[str, Any], path: str) -> list[str]:
    """The names of the components in a recipe's field: a name, a table with `kind`, or a list of both.

    >>> components_at({"a": ["x", "y"]}, "a"), components_at({"a.kind": "Clip", "a.low": 0.2}, "a")
    (['x', 'y'], ['Clip'])
    """
    if path in fields:
        value = fields[path]
        return [str(x) for x in value] if isinstance(value, list) else [str(value)]
    below = (key.removeprefix(f"{path}.") for key in fields if key.startswith(f"{path}."))
    direct = [key for key in below if key == "kind" or key.partition(".")[0].isdecimal()]
    if direct == ["kind"]:
        return [str(fields[f"{path}.kind"])]
    return [name for first in dict.fromkeys(key.partition(".")[0] for key in direct if key != "kind")
            for name in components_at(fields, f"{path}.{first}")]  # fmt: skip
