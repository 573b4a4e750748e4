"""Side models: models beside the policy, such as the reference model."""

from dataclasses import dataclass

__all__ = ["InitialPolicy"]


@dataclass(frozen=True, slots=True)
class InitialPolicy:
    """A frozen copy of the policy at the start of the run: the usual reference model."""
