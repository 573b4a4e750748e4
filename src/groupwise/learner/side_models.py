"""Models beside the policy: where their weights come from."""

from dataclasses import dataclass

__all__ = ["InitialPolicy"]


@dataclass(frozen=True, slots=True)
class InitialPolicy:
    """The policy as it stood when the run began, never changed: the usual reference."""
