"""Properties of a part: its name, its measures and its coupling, each including the parts in its fields."""

from dataclasses import fields, is_dataclass
from typing import Any

from groupwise.data.measures import Measure
from groupwise.data.sockets import Couples, Weighs

__all__ = ["couples", "name_of", "needs", "one_per_sequence", "weighs"]

_COUPLES: tuple[Couples, ...] = ("token", "sequence", "group", "step")


def couples(part: Any) -> Couples:
    """The widest unit that microbatches must keep whole, over a part and the parts in its fields."""
    units: list[Couples] = [getattr(p, "couples", "token") for p in _with_fields(part)]
    return max(units, key=_COUPLES.index)


def one_per_sequence(part: Any) -> bool:
    """Whether a part, or a part in its fields, gives all tokens of a sequence the same ratio."""
    return any(getattr(p, "one_per_sequence", False) for p in _with_fields(part))


def weighs(aggregate: Any) -> Weighs:
    """The unit that an aggregate weighs equally: each token, or each sequence of a group."""
    return getattr(aggregate, "weighs", "tokens")


def needs(part: Any) -> frozenset[Measure]:
    """The measures that a part and the parts in its fields read."""
    return frozenset().union(*(getattr(p, "needs", frozenset()) for p in _with_fields(part)))


def name_of(part: Any) -> str:
    """The public name of a part: a function's name, a class name, or the `name` of a class without fields.

    >>> name_of(max)
    'max'
    """
    cls = type(part)
    if is_dataclass(part):
        return getattr(cls, "name", cls.__name__)
    return getattr(part, "__name__", cls.__name__)


def _with_fields(part: Any) -> list[Any]:
    if isinstance(part, tuple):
        return [q for p in part for q in _with_fields(p)] or [None]
    if not is_dataclass(part):
        return [part]
    return [part, *(q for f in fields(part) for q in _with_fields(getattr(part, f.name)))]
