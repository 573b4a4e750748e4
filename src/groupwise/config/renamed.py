"""Old names in recipes: the table of renamed keys and parts, and the upgrade of a recipe's text."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

KEYS: Mapping[str, Mapping[str, str]] = {
    "method": {"keep": "filter", "passes": "epochs"},
    "machine": {"piece_tokens": "microbatch_tokens"},
}
"""New names of the keys of a recipe's tables, by table and old name. The first key of a schedule's path counts, too."""
PARTS: Mapping[str, str] = {"Start": "InitialPolicy"}
"""New public names of parts, by old name."""


def renamed_key(table: str, key: str) -> str:
    """The new name of an old key in a table, such as `method`; empty if the key was not renamed.

    >>> renamed_key("method", "passes"), renamed_key("method", "refill")
    ('epochs', '')
    """
    return KEYS.get(table, {}).get(key, "")


def upgraded(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's TOML data with new names.

    >>> upgraded({"method": {"passes": 2, "models": {"reference": "Start"}}, "save": {"keep": 1}})
    {'method': {'epochs': 2, 'models': {'reference': 'InitialPolicy'}}, 'save': {'keep': 1}}
    """
    return {name: _upgraded_table(name, value) if name in KEYS else value for name, value in recipe.items()}


def upgrade_text(text: str) -> str:
    """A recipe's TOML with new names. Comments and layout stay. Raises TOMLDecodeError for invalid TOML.

    Each occurrence of an old name is replaced if that, and nothing else, changes the data towards the upgraded recipe.

    >>> print(upgrade_text("[method]\\nkeep = 'mixed_outcomes'  # keep both\\n[save]\\nkeep = 1"))
    [method]
    filter = 'mixed_outcomes'  # keep both
    [save]
    keep = 1
    """
    target = upgraded(tomllib.loads(text))
    names = [pair for table in KEYS.values() for pair in table.items()] + list(PARTS.items())
    for old, new in names:
        start = 0
        while match := re.compile(rf"\b{re.escape(old)}\b").search(text, start):
            candidate = text[: match.start()] + new + text[match.end() :]
            accepted = _is_step(text, candidate, target)
            text, start = (candidate, match.start() + len(new)) if accepted else (text, match.end())
    return text if tomllib.loads(text) == target else tomli_w.dumps(target)


def _is_step(text: str, candidate: str, target: Mapping[str, Any]) -> bool:
    """Whether the candidate differs in its data, and still has the same upgraded recipe."""
    try:
        data = tomllib.loads(candidate)
    except tomllib.TOMLDecodeError:
        return False
    return data != tomllib.loads(text) and upgraded(data) == target


def _upgraded_table(name: str, table: Any) -> Any:
    if not isinstance(table, Mapping):
        return table
    data = {renamed_key(name, key) or key: value for key, value in table.items()}
    if isinstance(models := data.get("models"), Mapping):
        data["models"] = {model: _upgraded_part(part) for model, part in models.items()}
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
