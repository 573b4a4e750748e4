"""How deep the lists and tables of JSON or TOML are nested, without recursion."""

from typing import Any

__all__ = ["is_nested_deeper"]


def is_nested_deeper(value: Any, most: int) -> bool:
    """Whether lists and tables are nested more than `most` levels deep.

    >>> is_nested_deeper({"a": {"b": [1]}}, 3), is_nested_deeper({"a": {"b": [1]}}, 2)
    (False, True)
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        inner = (x.values() if isinstance(x, dict) else x for x in level)
        level = [x for values in inner for x in values if isinstance(x, dict | list)]
        if not level:
            return False
    return bool(level)
