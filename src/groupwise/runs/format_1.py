"""Old and new names of recipe keys and components. Runs and recipes of format 1 have the old names."""

from collections.abc import Mapping
from typing import Any

from groupwise.data import current_name

KEYS: Mapping[str, Mapping[str, str]] = {
    "method": {"keep": "filter", "passes": "epochs"},
    "machine": {"piece_tokens": "microbatch_tokens"},
}
"""New names of recipe keys, by TOML table and old name."""
MOVED: Mapping[tuple[str, str], str] = {
    ("routing", "balance"): 'method.auxiliary = [{ kind = "RouterBalance", coefficient = ... }]'
}
"""The replacement of each recipe key that has moved, by its former table and key."""
PARTS: Mapping[str, str] = {"Start": "InitialPolicy", "reinforce": "policy_gradient"}
"""New public names of components, by old name."""
SAMPLE_KEYS: Mapping[str, str] = {"kept": "selected"}
"""New names of the fields of a sample in samples/, by old name."""


def renamed_key(table: str, key: str) -> str:
    """The new name of an old key in a recipe's table, such as `method`; empty if the key was not renamed.

    >>> renamed_key("method", "passes"), renamed_key("method", "max_refills")
    ('epochs', '')
    """
    return KEYS.get(table, {}).get(key, "")


def upgraded(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's TOML data, with old names replaced by new ones.

    >>> upgraded({"method": {"passes": 2, "models": {"reference": "Start"}}, "save": {"keep": 1}})
    {'method': {'epochs': 2, 'models': {'reference': 'InitialPolicy'}}, 'save': {'keep': 1}}
    """
    return {name: _upgraded_table(name, value) if name in KEYS else value for name, value in recipe.items()}


def upgraded_metrics(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The values of metrics, with old metric names replaced by new ones.

    >>> upgraded_metrics({"rollout/kept": 3, "reward": 1})
    {'rollout/selected': 3, 'reward': 1}
    """
    return {current_name(name): value for name, value in columns.items()}


def upgraded_sample(line: Mapping[str, Any]) -> dict[str, Any]:
    """A sample of samples/, with old field names replaced by new ones.

    >>> upgraded_sample({"text": "7", "kept": False})
    {'text': '7', 'selected': False}
    """
    return {SAMPLE_KEYS.get(key, key): value for key, value in line.items()}


def _upgraded_table(name: str, table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    data = {renamed_key(name, key) or key: value for key, value in table.items()}
    if isinstance(routing := data.get("routing"), Mapping) and "balance" in routing:
        data["routing"] = {key: value for key, value in routing.items() if key != "balance"}
        if routing["balance"]:
            data["auxiliary"] = [{"kind": "RouterBalance", "coefficient": routing["balance"]}]
    if isinstance(models := data.get("models"), Mapping):
        data["models"] = {model: _upgraded_part(part) for model, part in models.items()}
    if isinstance(objective := data.get("objective"), Mapping) and "surrogate" in objective:
        data["objective"] = {**objective, "surrogate": _upgraded_part(objective["surrogate"])}
    if isinstance(schedules := data.get("schedules"), Mapping):
        data["schedules"] = {_upgraded_path(name, path): schedule for path, schedule in schedules.items()}
    return data


def _upgraded_part(part: Any) -> Any:
    if isinstance(part, str):
        return PARTS.get(part, part)
    if isinstance(part, Mapping) and isinstance(kind := part.get("kind"), str):
        return {**part, "kind": PARTS.get(kind, kind)}
    return part


def _upgraded_path(table: str, path: str) -> str:
    first, dot, following = path.partition(".")
    return f"{renamed_key(table, first) or first}{dot}{following}"
