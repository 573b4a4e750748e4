"""The gap between engine and learner: the names of its metrics, and how large it may be."""

from typing import Literal

__all__ = ["GAP", "GAPS", "LARGEST_GAP", "gap_bound"]

GAP = "sampling/sampling_logp_difference"
"""The metric of the difference between two log-probs of a token, the engine's and the learner's. TRL's name."""
LARGEST_GAP = f"{GAP}/max"

GAPS = {"float32": 1e-3, "float64": 1e-3, "bfloat16": 2.0}
"""The largest gap that rounding explains, by dtype, with room to spare. Measured: 3e-5 in float32, 0.5 in bfloat16."""


def gap_bound(max_gap: float | Literal["by_dtype"], dtype: str) -> float:
    """The bound that `engine.max_gap` stands for.

    >>> gap_bound("by_dtype", "bfloat16"), gap_bound(0.25, "float32")
    (2.0, 0.25)
    """
    return GAPS[dtype] if max_gap == "by_dtype" else max_gap
