"""Verdicts to numbers: what shapes a reward, and which families are kept."""

from groupwise.rewards.keep import everything, mixed_outcomes
from groupwise.rewards.shaping import Correctness, KLInReward, Overlong, TruncatedIs

__all__ = ["Correctness", "KLInReward", "Overlong", "TruncatedIs", "everything", "mixed_outcomes"]
