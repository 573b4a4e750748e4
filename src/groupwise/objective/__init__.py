"""A batch to one scalar: ratios, surrogates, weights, penalties, masks, aggregates, and what to look at."""

from groupwise.objective.aggregates import budget_mean, group_mean, sequence_mean, sequence_sum, token_mean
from groupwise.objective.masks import complete
from groupwise.objective.objective import Objective
from groupwise.objective.penalties import KL, EntropyBonus, kl_k1, kl_k3
from groupwise.objective.ratios import (
    MAX_LOG_RATIO,
    PowerMean,
    sequence_product,
    sequence_ratio,
    sequence_ratio_per_token,
    token_ratio,
)
from groupwise.objective.stats import describe_gap, describe_samples, describe_step
from groupwise.objective.surrogates import Clip, ClippedWeight, Clips, SoftGate, Unclipped, reinforce
from groupwise.objective.weights import MaskedImportance, SequenceTruncatedImportance, TruncatedImportance

__all__ = [
    "KL",
    "MAX_LOG_RATIO",
    "Clip",
    "ClippedWeight",
    "Clips",
    "EntropyBonus",
    "MaskedImportance",
    "Objective",
    "PowerMean",
    "SequenceTruncatedImportance",
    "SoftGate",
    "TruncatedImportance",
    "Unclipped",
    "budget_mean",
    "complete",
    "describe_gap",
    "describe_samples",
    "describe_step",
    "group_mean",
    "kl_k1",
    "kl_k3",
    "reinforce",
    "sequence_mean",
    "sequence_product",
    "sequence_ratio",
    "sequence_ratio_per_token",
    "sequence_sum",
    "token_mean",
    "token_ratio",
]
