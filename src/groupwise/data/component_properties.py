"""Properties of a method's component and of the components in its fields: name, needed measures, metrics."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from groupwise.data.base_classes import EqualWeightUnit, UnsplitUnit
from groupwise.data.batch import Batch
from groupwise.data.measures import NeededMeasure
from groupwise.data.roles import Role
from groupwise.data.verdict_contents import VerdictContents, joined_contents

__all__ = [
    "added_contents",
    "declares",
    "equal_weight_unit",
    "name_of",
    "needs",
    "notes",
    "one_per_sequence",
    "roles_of",
    "sampled_by",
    "unsplit_unit",
    "with_fields",
]

_UNITS: tuple[UnsplitUnit, ...] = ("token", "sequence", "group", "step")


def unsplit_unit(part: Any) -> UnsplitUnit:
    """The largest unit that microbatches must not split (`UnsplitUnit`), over a component and those in its fields."""
    units: list[UnsplitUnit] = [getattr(p, "unsplit_unit", "token") for p in with_fields(part)]
    return max(units, key=_UNITS.index)


def one_per_sequence(part: Any) -> bool:
    """Whether a component, or one in its fields, has one ratio per sequence instead of one per token."""
    return declares(part, "one_per_sequence")


def declares(part: Any, name: str) -> bool:
    """Whether a component, or one in its fields, declares this property, such as `needs_environment = True`."""
    return any(getattr(p, name, False) for p in with_fields(part))


def equal_weight_unit(aggregate: Any) -> EqualWeightUnit:
    """The unit to which an aggregate gives equal weights: `tokens` or `sequences`."""
    return getattr(aggregate, "equal_weight_unit", "tokens")


def needs(part: Any) -> frozenset[NeededMeasure]:
    """The measures (such as reference log-probs) that a component and the components in its fields need."""
    return frozenset().union(*(getattr(p, "needs", frozenset()) for p in with_fields(part)))


def roles_of(strategy: Any) -> Mapping[str, Role] | None:
    """The roles of the samples that a strategy, with the components in its fields, makes beside answers, by name.

    None if a component that is not the package's does not declare its `roles`.
    """
    parts = with_fields(strategy)
    if any(_is_unknown(part, "roles") for part in parts):
        return None
    return {role.name: role for part in parts for role in getattr(part, "roles", ())}


def added_contents(strategy: Any) -> VerdictContents | None:
    """The subscores that a strategy, with the components in its fields, adds to verdicts; None as for `roles_of`."""
    parts = with_fields(strategy)
    if any(_is_unknown(part, "contents") for part in parts):
        return None
    return joined_contents(part.contents for part in parts if hasattr(part, "contents"))


def _is_unknown(part: Any, declares: str) -> bool:
    """Whether a component is code of a user that does not declare this."""
    return callable(part) and not type(part).__module__.startswith("groupwise.") and not hasattr(part, declares)


def sampled_by(part: Any) -> frozenset[str]:
    """The side models that a component, or one in its fields, takes for the policy that generated the samples."""
    return frozenset(filter(None, (getattr(p, "sampled_by", "") for p in with_fields(part))))


def notes(part: Any, batch: Batch) -> dict[str, float]:
    """The metrics that a component and those in its fields compute from a batch, as `method/COMPONENT/NAME`.

    A component returns them from its method `notes(batch)`.
    """
    noted = (p for p in with_fields(part) if hasattr(p, "notes"))
    return {f"method/{name_of(p)}/{name}": float(x) for p in noted for name, x in p.notes(batch).items()}


def name_of(part: Any) -> str:
    """The public name of a component: a function's name, a class's attribute `name`, or else the class name.

    >>> name_of(max)
    'max'
    """
    cls = type(part)
    if is_dataclass(part):
        return getattr(cls, "name", cls.__name__)
    return getattr(part, "__name__", cls.__name__)


def with_fields(part: Any) -> list[Any]:
    """The component, and recursively the values of its fields and the items of its tuples."""
    if isinstance(part, tuple):
        return [q for p in part for q in with_fields(p)] or [None]
    if not is_dataclass(part):
        return [part]
    return [part, *(q for f in fields(part) for q in with_fields(getattr(part, f.name)))]
