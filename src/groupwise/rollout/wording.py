"""Fills the prompt templates of sampling strategies, and checks their placeholders."""

import re
from collections.abc import Mapping

__all__ = ["check_wording", "fill"]

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def fill(words: str, values: Mapping[str, str]) -> str:
    """A template text with each `{name}` replaced by its value. Values are inserted as they are, in one pass.

    >>> fill("{problem} Try: {draft}", {"problem": "1+1=", "draft": "{problem}"})
    '1+1= Try: {problem}'
    """
    return _PLACEHOLDER.sub(lambda match: values[match[1]], words)


def check_wording(words: str, names: tuple[str, ...]) -> None:
    """ValueError if a template text has an unknown placeholder, or lacks one of `names`."""
    found = set(_PLACEHOLDER.findall(words))
    if found != set(names):
        wanted = " and ".join(f"{{{name}}}" for name in names)
        raise ValueError(f"the template text {words!r} must have exactly the placeholders {wanted}")
