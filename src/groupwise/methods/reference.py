"""`Reference`: a method's paper and formula, and the differences between paper, authors' code and this code."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from groupwise.methods.method import Method

__all__ = ["Difference", "Reference", "reference_of"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One constant or choice: in the paper, in the authors' released code, and here."""

    what: str
    paper: str
    code: str
    ours: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The source of a published method. `formula` is plain text; `proofs` are the ids of the tests that verify it.

    In a difference, *recalled* marks a value that was not checked again in its source, *inferred* one without a source.
    """

    paper: str
    arxiv: str
    formula: str
    differences: tuple[Difference, ...]
    proofs: tuple[str, ...]


def reference_of(method: Callable[..., Method]) -> Reference:
    """The `REFERENCE` in the file of a method's function.

    >>> from groupwise.methods import published
    >>> {reference_of(method).arxiv[:2] for method in published} <= {"24", "25"}
    True
    """
    return sys.modules[method.__module__].REFERENCE
