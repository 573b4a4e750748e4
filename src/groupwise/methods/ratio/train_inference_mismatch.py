"""Corrections of the mismatch between engine and learner: TIS, MIS, IcePop, rejection, and their relatives."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from groupwise.advantages import Standardised
from groupwise.data import Weight
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Reference
from groupwise.objective import (
    GeometricMaskedImportance,
    MaskedImportance,
    NormalisedWeight,
    Objective,
    OnPolicy,
    Reject,
    Routed,
    SequenceMaskedImportance,
    SequenceTruncatedImportance,
    TruncatedImportance,
    group_mean,
    nothing,
)

__all__ = ["train_inference_mismatch"]

Correction = Literal[
    "tis", "sequence_tis", "icepop", "sequence_mis", "sequence_mask_tis", "normalised", "geometric", "v3.2", "bypass"
]

WEIGHTS: Mapping[str, Weight] = {
    "tis": TruncatedImportance(2.0),
    "sequence_tis": SequenceTruncatedImportance(2.0),
    "icepop": MaskedImportance(0.5, 5.0),
    "sequence_mis": SequenceMaskedImportance(0.0, 3.0),
    "sequence_mask_tis": GeometricMaskedImportance(0.5, 5.0),
    "normalised": NormalisedWeight(TruncatedImportance(2.0)),
}


def train_inference_mismatch(*, group_size: int = 8, correction: Correction = "tis", minibatches: int = 4) -> Method:
    """GRPO without KL, with a correction of the log-prob gap between the engine and the learner."""
    plain = Objective(aggregate=group_mean)
    base = Method(group_size=group_size, advantage=(Standardised(),), objective=plain, minibatches=minibatches)
    match correction:
        case "geometric":
            return replace(base, mask=(Reject("k1", "mean", 0.999, 1.001),))
        case "v3.2":
            surrogate = Routed(OnPolicy(0.1), then=plain.surrogate, otherwise=nothing)
            return replace(base, objective=replace(plain, surrogate=surrogate))
        case "bypass":
            return replace(base, proximal="sampled")
    return replace(base, objective=replace(plain, weights=(WEIGHTS[correction],)))


REFERENCE = Reference(
    paper="Diagnosing Training Inference Mismatch in LLM Reinforcement Learning",
    arxiv="2605.14220",
    label="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/rollout_corr_helper.py",
    parent="grpo",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t w_it min[ r_it A_i, clip(r_it, 1 - eps, 1 + eps) A_i ]
rho_it = pi_old / pi_engine, without gradient
tis: w = min(rho_it, 2); sequence_tis: w = min(prod_t rho_it, 2); icepop: w = rho_it if 0.5 <= rho_it <= 5, else 0
sequence_mis: w = prod_t rho_it if at most 3, else 0; sequence_mask_tis: w = rho_it if 0.5 <= mean rho <= 5, else 0
normalised: tis over its mean; geometric: tokens leave the loss unless 0.999 <= (prod_t rho_it)^(1/|o_i|) <= 1.001
v3.2: answers with A_i < 0 and mean_t(log pi_engine - log pi) > 0.1 have no gradient; bypass: pi_old = pi_engine""",
    differences=(
        Difference("cap of TIS", "blog: 2", "oat 2; verl off, 2; TRL 3", "2"),
        Difference("bounds of IcePop", "0.5 and 5", "verl and OpenRLHF 0.5 and 5", "0.5 and 5"),
        Difference("cap of sequence MIS", "blog: 2 to 10", "TRL 3, by default", "3"),
        Difference(
            "bounds of rejection",
            "blog: on the ratio",
            "verl: on 1 / rho, so unequal bounds are swapped",
            "on rho",
        ),
        Difference("delta of v3.2", "no value", "not released; verl none", "0.1 (inferred)"),
        Difference("advice", "mend the engine first", "verl: a warning", "engine.max_gap stops the run"),
        Difference("objective", "any", "any", "GRPO without KL; the parts fit every method"),
        Difference("group size, minibatches", "any", "any", "8 and 4"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[train_inference_mismatch]",
        "tests/golden/test_methods.py::test_whole_path[sequence_tis]",
        "tests/golden/test_methods.py::test_whole_path[icepop]",
        "tests/golden/test_methods.py::test_whole_path[sequence_mis]",
        "tests/golden/test_methods.py::test_whole_path[sequence_mask_tis]",
        "tests/golden/test_methods.py::test_whole_path[normalised]",
        "tests/golden/test_methods.py::test_whole_path[v3.2]",
        "tests/golden/test_ratio.py::test_weights_of_the_mismatch",
        "tests/golden/test_ratio.py::test_rejection_changes_the_divisor",
        "tests/golden/test_ratio.py::test_off_policy_mask_keeps_positive_answers",
    ),
    no_effect="The engine and the learner agree here, so that every weight is 1.",
    toy="tests/objective/test_weights.py::test_the_product_of_rhos_is_unbiased_for_sequences",
)
