"""The result of checks: errors, notes for the user, and what the checks read."""

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.core import GroupwiseError
from groupwise.training.build import Inputs

__all__ = ["Checked"]


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What checks found: `errors`, and `notes` for the user. `inputs` are what they read; None after an error.

    >>> (Checked(notes=["a"]) + Checked(notes=["b"])).notes
    ['a', 'b']
    """

    errors: Sequence[GroupwiseError] = ()
    notes: Sequence[str] = ()
    inputs: Inputs | None = None

    def __add__(self, other: "Checked") -> "Checked":
        """The findings of both, in order, with the later inputs."""
        return Checked([*self.errors, *other.errors], [*self.notes, *other.notes], other.inputs or self.inputs)
