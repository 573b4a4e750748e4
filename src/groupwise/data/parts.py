"""Properties of a method's component and of the components in its fields: name, needed measures, metrics."""

from dataclasses import fields, is_dataclass
from typing import Any

from groupwise.data.batch import Batch
from groupwise.data.measures import Measure
from groupwise.data.sockets import Couples, Weighs

__all__ = ["couples", "name_of", "needs", "notes", "one_per_sequence", "sampled_by", "weighs", "with_fields"]

_COUPLES: tuple[Couples, ...] = ("token", "sequence", "group", "step")


def couples(part: Any) -> Couples:
    """The largest unit that microbatches must not split (`Couples`), over a component and those in its fields."""
    units: list[Couples] = [getattr(p, "couples", "token") for p in with_fields(part)]
    return max(units, key=_COUPLES.index)


def one_per_sequence(part: Any) -> bool:
    """Whether a component, or one in its fields, has one ratio per sequence instead of one per token."""
    return any(getattr(p, "one_per_sequence", False) for p in with_fields(part))


def weighs(aggregate: Any) -> Weighs:
    """The unit to which an aggregate gives equal weights: `tokens` or `sequences`."""
    return getattr(aggregate, "weighs", "tokens")


def needs(part: Any) -> frozenset[Measure]:
    """The measures (such as reference log-probs) that a component and the components in its fields need."""
    return frozenset().union(*(getattr(p, "needs", frozenset()) for p in with_fields(part)))


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
