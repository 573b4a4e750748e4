"""Corrections of the mismatch between engine and learner: TIS, MIS, IcePop, rejection, and their relatives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Logp, Mask, NeededMeasure, UnsplitUnit, Weight
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import (
    GatedSurrogate,
    GeometricMaskedImportance,
    MaskedImportance,
    Objective,
    SequenceMaskedImportance,
    SequenceTruncatedImportance,
    TruncatedImportance,
    group_mean,
    nothing,
    written_tokens,
)
from groupwise.objective.importance_weights import log_rho

__all__ = ["MismatchRejection", "NormalisedWeight", "OffPolicySequenceMask", "train_inference_mismatch"]


@dataclass(frozen=True, slots=True)
class OffPolicySequenceMask(Mask):
    """Leaves out tokens with A < 0 in answers that are off-policy: mean `log pi_engine - log pi` above `delta`.

    The off-policy sequence mask of DeepSeek-V3.2, arXiv:2512.02556. `log pi` is the current policy's, without gradient.
    Written tokens have no engine log-prob and count as 0.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    reads_advantage: ClassVar[bool] = True

    delta: float = 0.1

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        s = b.sequences
        drift = s.spread(s.mean(_drift(b)))
        return ~((b.advantage < 0) & (drift > self.delta))


def _drift(b: Batch) -> Float[Tensor, " n"]:
    return torch.where(written_tokens(b), 0.0, b.logp_engine - b.logp.detach())


@dataclass(frozen=True, slots=True)
class MismatchRejection(Mask):
    """Keeps tokens with a small engine-learner gap, by a statistic of `log rho = log (learner / engine probability)`.

    k1 is `log rho`, with absolute bounds on rho itself; k2 is `log(rho)^2 / 2` and k3 `rho - 1 - log rho`, with `cap`
    alone. `k1` over the `mean` is the geometric filter, over the `sum` the product of the answer. Rejected tokens leave
    all divisors, unlike those of weight 0. "When Speed Kills Stability", 2025, and verl's rejection sampling.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({Logp("policy")})

    gap_estimator: Literal["k1", "k2", "k3"] = "k1"
    token_reduction: Literal["token", "sum", "mean", "largest"] = "mean"
    floor: float = 0.999
    cap: float = 1.001

    def __post_init__(self) -> None:
        if self.gap_estimator == "k1" and not 0 < self.floor <= 1 <= self.cap:
            raise ValueError(
                f"{self}: k1 needs 0 < floor <= 1 <= cap, to keep tokens with equal log-probs in engine and learner"
            )
        if self.cap < 0:
            raise ValueError(f"{self}: needs cap >= 0, to keep tokens with equal log-probs in engine and learner")

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        gap, s = log_rho(b), b.sequences
        x = {"k1": gap, "k2": gap**2 / 2, "k3": torch.expm1(gap) - gap}[self.gap_estimator]
        if self.token_reduction != "token":
            x = s.spread({"sum": s.total, "mean": s.mean, "largest": s.largest}[self.token_reduction](x))
        if self.gap_estimator == "k1":
            return (x >= math.log(self.floor)) & (x <= math.log(self.cap))
        return x <= self.cap


@dataclass(frozen=True, slots=True)
class NormalisedWeight(Weight):
    """Another weight, divided by its mean over the step's tokens or sequences, so that its mean is 1.

    Batch normalisation of importance weights, after their truncation, as in verl. A step with weights of 0 keeps them.
    """

    base_weight: Weight
    mean_over: Literal["tokens", "sequences"] = "tokens"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        w, s = self.base_weight(step), step.sequences
        units = w if self.mean_over == "tokens" else s.mean(w)[s.lengths > 0]
        mean = units.mean() if len(units) else w.new_ones(())
        return w / mean.masked_fill(mean == 0, 1.0)

    def notes(self, step: Batch) -> Mapping[str, float]:
        """A metric: the effective sample size of the weights, divided by the number of tokens."""
        w = self(step).double()
        return {"effective_share": float(w.sum() ** 2 / (w**2).sum() / len(w))} if bool((w != 0).any()) else {}


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
    """GRPO without KL, with a correction of the log-prob gap between the engine and the learner.

    Engine and learner compute different probabilities for the same tokens, so even fresh samples are off-policy, and
    training can collapse. A weight or a mask, computed from the gap, corrects or leaves out samples; the paper advises
    to repair the engine first.

    Args:
        group_size: answers per prompt, G, at least 2.
        correction: one of the corrections in the formula; the threshold 0.1 of "v3.2" is our reading.
        minibatches: optimizer steps per iteration.
    """
    plain = Objective(aggregate=group_mean)
    base = Method(group_size=group_size, advantage=(Standardised(),), objective=plain, minibatches=minibatches)
    match correction:
        case "geometric":
            return replace(base, mask=(MismatchRejection("k1", "mean", 0.999, 1.001),))
        case "v3.2":
            surrogate = GatedSurrogate(
                OffPolicySequenceMask(0.1), selected_surrogate=plain.surrogate, other_surrogate=nothing
            )
            return replace(base, objective=replace(plain, surrogate=surrogate))
        case "bypass":
            return replace(base, old_logprobs="engine")
    return replace(base, objective=replace(plain, weights=(WEIGHTS[correction],)))


REFERENCE = PaperReference(
    paper="Diagnosing Training Inference Mismatch in LLM Reinforcement Learning",
    arxiv="2605.14220",
    evidence="code read",
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
        PaperDifference("cap of TIS", "blog: 2", "oat 2; verl off, 2; TRL 3", "2"),
        PaperDifference("bounds of IcePop", "0.5 and 5", "verl and OpenRLHF 0.5 and 5", "0.5 and 5"),
        PaperDifference("cap of sequence MIS", "blog: 2 to 10", "TRL 3, by default", "3"),
        PaperDifference(
            "bounds of rejection", "blog: on the ratio", "verl: on 1 / rho, so unequal bounds are swapped", "on rho"
        ),
        PaperDifference("delta of v3.2", "no value", "not released; verl none", "0.1 (inferred)"),
        PaperDifference("advice", "mend the engine first", "verl: a warning", "engine.max_logprob_diff stops the run"),
        PaperDifference("objective", "any", "any", "GRPO without KL; the parts fit every method"),
        PaperDifference("group size, minibatches", "any", "any", "8 and 4"),
    ),
    proof_tests=(
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
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(
            "method.minibatches = 8",
            "method.objective.penalties = []",
            'engine = {kind = "rounded_engine:Rounded", max_logprob_diff = 20.0}',
        ),
        acted="sampling/sampling_logp_difference/mean",
        acted_least=0.05,
        acted_in="parent",
        plan="whole",
    ),
    toy_test="tests/objective/test_weights.py::test_the_product_of_rhos_is_unbiased_for_sequences",
    our_finding="The rounded engine of the runs differs from the learner by 0.002 nats per token, and the effect asks "
    "for 0.05: a correction of so small a gap can do nothing.",
)
