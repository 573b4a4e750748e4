"""Reads new problems that the policy proposes in its answers."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from groupwise.data import Measure, VerdictPart
from groupwise.tasks import proposed_problem
from groupwise.tasks.sums import worked

__all__ = ["ProblemSource", "Proposal", "SumProposals"]


class Proposal(NamedTuple):
    """A problem that an answer proposes: its text, the columns of its row, and its kind."""

    text: str
    row: Mapping[str, Any]
    kind: str


@runtime_checkable
class ProblemSource(Protocol):
    """Extracts a proposed problem from an answer's text; None if there is none that can be graded.

    `row` must be JSON. `kind` groups proposals that should be about equally diverse, such as by difficulty.
    """

    __slots__ = ()

    @abstractmethod
    def propose(self, text: str) -> Proposal | None: ...


@dataclass(frozen=True, slots=True)
class SumProposals(ProblemSource):
    """Extracts the new sum at the end of an answer to the task `proposals`. Its kind is its number of operands.

    It needs the verdict part `proposed`, since only a verifier that gives it grades such answers.

    >>> SumProposals().propose("7*5=35;#35;2+9*3=").row["answer"], SumProposals().propose("#35;2+9*3=").kind
    (33, '3')
    """

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart("proposed")})

    def propose(self, text: str) -> Proposal | None:
        problem = proposed_problem(text)
        return Proposal(problem, worked(problem), str(len(problem) // 2)) if problem else None
