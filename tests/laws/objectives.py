"""The objectives under test: one for every part and every published combination of parts."""

from groupwise.methods import SoftGate
from groupwise.objective import (
    KL,
    Clip,
    ClippedWeight,
    EntropyBonus,
    MaskedImportance,
    Objective,
    PowerMeanRatio,
    SequenceTruncatedImportance,
    TruncatedImportance,
    UnclippedSurrogate,
    budget_mean,
    group_mean,
    policy_gradient,
    sequence_mean,
    sequence_product,
    sequence_ratio,
    sequence_ratio_per_token,
    sequence_sum,
    token_mean,
)

OBJECTIVES: dict[str, Objective] = {
    "grpo": Objective(surrogate=Clip(), penalties=(KL(0.04),), aggregate=sequence_mean),
    "grpo by group": Objective(surrogate=Clip(), penalties=(KL(0.04, kl_estimator="corrected"),), aggregate=group_mean),
    "dr_grpo": Objective(surrogate=Clip(), aggregate=budget_mean),
    "dapo": Objective(surrogate=Clip(0.2, 0.28), aggregate=token_mean),
    "gspo": Objective(surrogate=Clip(0.03, 0.04, ratio=sequence_ratio), aggregate=sequence_mean),
    "gspo_token": Objective(surrogate=Clip(0.03, 0.04, ratio=sequence_ratio_per_token), aggregate=group_mean),
    "rloo": Objective(surrogate=Clip(0.5, 0.5, ratio=sequence_product), aggregate=sequence_mean),
    "rloo as reinforce": Objective(surrogate=policy_gradient, aggregate=sequence_sum),
    "reinforce_pp": Objective(surrogate=Clip(), penalties=(KL(0.01, kl_estimator="k2"),), aggregate=token_mean),
    "cispo": Objective(surrogate=ClippedWeight(0.0, 1.28), aggregate=token_mean),
    "cispo with a floor": Objective(surrogate=ClippedWeight(0.8, 1.28), aggregate=sequence_sum),
    "gmpo": Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(0, 0.4, 0.4)), aggregate=sequence_mean),
    "holder": Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(2, 0.2, 0.4)), aggregate=group_mean),
    "holder below": Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(-1.5)), aggregate=sequence_mean),
    "sapo": Objective(surrogate=SoftGate(), aggregate=sequence_mean),
    "unclipped": Objective(surrogate=UnclippedSurrogate(), penalties=(EntropyBonus(0.01),), aggregate=sequence_sum),
    "with token weights": Objective(weights=(TruncatedImportance(1.2),), aggregate=sequence_mean),
    "with sequence weights": Objective(weights=(SequenceTruncatedImportance(1.5),), aggregate=token_mean),
    "with a band": Objective(weights=(MaskedImportance(0.8, 1.3),), penalties=(KL(0.1),), aggregate=token_mean),
    "with two weights": Objective(weights=(MaskedImportance(0.8, 1.3), TruncatedImportance(1.1)), aggregate=group_mean),
}

ONE_ADVANTAGE = ("gmpo", "holder", "holder below")
"""These objectives refuse advantages that vary within a sequence."""
