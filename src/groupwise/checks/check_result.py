"""The result of checks: errors, notes for the user, and what the checks read."""

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.core import GroupwiseError
from groupwise.training.build_run import RunInputs

__all__ = ["CheckResult"]


@dataclass(frozen=True, slots=True, eq=False)
class CheckResult:
    """What checks found: `errors`, and `notes` for the user. `inputs` are what they read; None after an error.

    >>> (CheckResult(notes=["a"]) + CheckResult(notes=["b"])).notes
    ['a', 'b']
    """

    errors: Sequence[GroupwiseError] = ()
    notes: Sequence[str] = ()
    inputs: RunInputs | None = None

    def __add__(self, other: "CheckResult") -> "CheckResult":
        """The findings of both, in order, with the later inputs."""
        return CheckResult([*self.errors, *other.errors], [*self.notes, *other.notes], other.inputs or self.inputs)
