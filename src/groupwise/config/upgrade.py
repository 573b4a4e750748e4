"""Replaces old names by new ones in a recipe's text."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

from groupwise.runs.format_1 import KEYS, PARTS, upgraded


def upgrade_text(text: str) -> str:
    """Replace old names in a recipe's TOML text. Comments and layout stay, unless a key has moved to another table.

    Each occurrence of an old name is replaced if that, and nothing else, changes the data towards the upgraded recipe.
    TOMLDecodeError for a text that is not TOML.

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
    """Whether a rewrite is a step of an upgrade: the data change, and still upgrade to the same final recipe."""
    try:
        data = tomllib.loads(candidate)
    except tomllib.TOMLDecodeError:
        return False
    return data != tomllib.loads(text) and upgraded(data) == target
