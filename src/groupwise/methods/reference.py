"""Where a method comes from, how its paper prints it, and where paper, authors' code and we differ."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from groupwise.methods.method import Method

__all__ = ["Difference", "Reference", "reference_of"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One constant or choice: as the paper says it, as the authors' released code has it, and as it is here."""

    what: str
    paper: str
    code: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A published method's source. `formula` is plain text; `proofs` are the ids of tests that hold us to it.

    In a difference, *recalled* marks what was not read again in its source, and *inferred* what no source says.
    """

    paper: str
    arxiv: str
    formula: str
    differences: tuple[Difference, ...]
    proofs: tuple[str, ...]


def reference_of(method: Callable[..., Method]) -> Reference:
    """The reference that stands beside a method's function.

    >>> from groupwise.methods import published
    >>> {reference_of(method).arxiv[:2] for method in published} <= {"24", "25"}
    True
    """
    return sys.modules[method.__module__].REFERENCE
