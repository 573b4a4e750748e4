"""The published method that trains the demonstrations of a warm start."""

from groupwise.methods.stored.sft import sft

__all__ = []

warm_start_method = sft
"""Its constructor, whose name a run records."""
