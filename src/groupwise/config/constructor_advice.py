"""The advice of an error that a constructor raised: `gw.Method(shaping=())` is answered with `shaping=(gw.Score(),)`.

A constructor checks its values for every door, and names fields as a recipe does. Here a field of the section that it
makes is its argument, and a component is a call.
"""

import json
import re
import tomllib
from typing import Any

from groupwise.config.fields import SECTIONS
from groupwise.config.python_advice import field_pattern, in_python, is_part, literal
from groupwise.core import GroupwiseError
from groupwise.methods.families import method_files

__all__ = ["in_constructor", "spell_constructor"]

PAIRS = ("models", "schedules", "states")
"""Fields whose entries have names: a table in a recipe, pairs of a name and a component in Python."""


def spell_constructor(error: GroupwiseError, name: str) -> None:
    """Render what an error of `gw.NAME(...)` advises, in place. Once more changes nothing."""
    error.what, error.fix = in_constructor(error.what, name), in_constructor(error.fix, name)
    error.args = (error.what,)


def in_constructor(text: str, name: str) -> str:
    """A message of the constructor `gw.NAME` with fields as its arguments.

    >>> in_constructor('set method.shaping = ["Score"]', "Method")
    'set shaping=(gw.Score(),)'
    >>> in_constructor('set method.states = { x = "AdaptiveKL" }', "grpo")
    'set states=(("x", gw.AdaptiveKL()),)'
    >>> in_constructor('set method.old_logprobs = "engine"', "gspo")
    'set old_logprobs="engine"'
    """
    owner = "Method" if name in method_files() else name
    sections = [f"{section}." for section, cls in SECTIONS.items() if cls == owner and section]

    def argument(match: re.Match[str]) -> str:
        section = next((section for section in sections if match[1].startswith(section)), "")
        field = match[1].removeprefix(section)
        if not section:
            return match[0]
        try:
            value = tomllib.loads(f"x = {match[2]}")["x"]
        except tomllib.TOMLDecodeError:
            return match[0]
        inner, _, last = field.rpartition(".")
        if inner:  # an argument of a value that the caller has made
            return f"{last}={component(value)} in {inner}"
        return f"{field}={pairs(value) if field in PAIRS and isinstance(value, dict) else component(value)}"

    return in_python(field_pattern().sub(argument, text))


def pairs(table: dict[str, Any]) -> str:
    """A table of a recipe as a tuple of pairs."""
    return f"({''.join(f'({json.dumps(key)}, {component(value)}),' for key, value in table.items())})"


def component(value: Any) -> str:
    """A value of a recipe as a program writes it: the name or the table of a component is a call, a list is a tuple.

    >>> component("token_mean"), component({"kind": "GAE", "critic": "x"}), component("engine"), component(2)
    ('gw.token_mean', 'gw.GAE(critic="x")', '"engine"', '2')
    """
    if isinstance(value, list):
        return f"({''.join(f'{component(item)},' for item in value)})"
    if isinstance(value, dict) and "kind" in value:
        arguments = ", ".join(f"{key}={component(item)}" for key, item in value.items() if key != "kind")
        return f"gw.{value['kind']}({arguments})"
    if isinstance(value, str) and is_part(value):
        return f"gw.{value}()" if value[0].isupper() else f"gw.{value}"
    return literal(value)
