"""The log-prob gap between engine and learner: its metric names and its default bounds."""

from typing import Literal

__all__ = ["GAP", "GAPS", "LARGEST_GAP", "gap_bound"]

GAP = "sampling/sampling_logp_difference"
"""Prefix of two metrics (TRL's), `/mean` and `/max`: |engine's log-prob - learner's log-prob| of a token."""
LARGEST_GAP = f"{GAP}/max"

GAPS = {"float32": 1e-3, "float64": 1e-3, "bfloat16": 2.0}
"""Default limit of the engine-learner log-prob gap, by dtype. Rounding alone gives 3e-5 in float32, 0.5 in bfloat16."""


def gap_bound(max_logprob_diff: float | Literal["by_dtype"], dtype: str) -> float:
    """The largest allowed gap as a number, from the setting `engine.max_logprob_diff` and the dtype.

    >>> gap_bound("by_dtype", "bfloat16"), gap_bound(0.25, "float32")
    (2.0, 0.25)
    """
    return GAPS[dtype] if max_logprob_diff == "by_dtype" else max_logprob_diff
