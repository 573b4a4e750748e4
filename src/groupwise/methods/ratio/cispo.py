"""CISPO: Clipped IS-weight Policy Optimization."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Mask, Ratio
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import ClippedWeight, GatedSurrogate, Objective, nothing, token_mean, token_ratio
from groupwise.rewards import mixed_outcomes

__all__ = ["InsideClip", "cispo"]


@dataclass(frozen=True, slots=True)
class InsideClip(Mask):
    """Selects the tokens that PPO's clip does not cut: a ratio up to `1 + high` (A > 0) or from `1 - low` on (A < 0).

    As a gate of `ClippedWeight` it is the unified token mask of CISPO, arXiv:2506.13585, equation 7.
    """

    reads_advantage: ClassVar[bool] = True

    low: float = 0.2
    high: float = 0.2
    ratio: Ratio = token_ratio

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        r, a = self.ratio(b).detach(), b.advantage
        return ~(((a > 0) & (r > 1 + self.high)) | ((a < 0) & (r < 1 - self.low)))


def cispo(
    *,
    group_size: int = 16,
    floor: float = 0.0,
    cap: float = 5.0,
    masked: tuple[float, float] | None = None,
    minibatches: int = 16,
) -> Method:
    """Clips the importance weight, not the objective, so every token keeps its gradient. With dynamic sampling.

    PPO's clip removes the gradient of a token once its ratio leaves the range, and rare words that redirect the
    reasoning, the paper argues, leave it first. CISPO bounds the weight of the gradient instead of the objective, so
    these tokens still contribute.

    Args:
        group_size: answers per prompt, at least 2.
        floor: lower bound of the weight itself, 1 - eps_low, 0 to 1; 0 is no bound.
        cap: upper bound of the weight itself, 1 + eps_high, at least 1.
        masked: low and high of PPO's clip; tokens that it clips have no gradient (equation 7). None masks no token.
        minibatches: optimizer steps per iteration.
    """
    surrogate = ClippedWeight(floor, cap)
    if masked:
        surrogate = GatedSurrogate(InsideClip(*masked), selected_surrogate=surrogate, other_surrogate=nothing)
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        max_refills=10,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    arxiv="2506.13585",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/grpo_trainer.py",
    parent="dapo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t sg[r^_it] A_it log pi(o_it | q, o_i<t)
r^_it = clip(r_it, 1 - eps_low, 1 + eps_high)
A_it = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference(
            "upper bound of the weight",
            "tuned, no value given",
            "not released; TRL 5 absolute, verl 0.2 relative, Trinity 0.28 relative",
            "5 absolute, as ScaleRL (arXiv:2510.13786)",
        ),
        PaperDifference(
            "lower bound", "none in effect", "not released; verl example: relative 10, so none", "0, so none"
        ),
        PaperDifference(
            "token mask of the unified form", "equation 7", "not released; Trinity: yes", "masked = (low, high)"
        ),
        PaperDifference("group size", "not specified", "not released; ScaleRL 16", "16 (inferred)"),
        PaperDifference("minibatches", "16, as the comparison with DAPO (recalled)", "not released; verl 4", "16"),
        PaperDifference("mixed groups only", "as in DAPO", "not released", "yes, max_refills = 10"),
        PaperDifference(
            "length penalty",
            "as in DAPO, no buffer given",
            "not released",
            "none; add OverlongPenalty(buffer) to shaping",
        ),
        PaperDifference("std of a group", "not specified", "TRL: of the batch; verl: ddof 1", "ddof 1, plus 1e-6"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[cispo]",
        "tests/golden/test_methods.py::test_worked_numbers[cispo]",
        "tests/golden/test_methods.py::test_whole_path[cispo, masked]",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="dapo",
        min_difference=0.03,
        runs_matched_by="tokens",
        settings=("method.minibatches = 8", "method.epochs = 4", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
        acted_in="parent",
        plan="whole",
    ),
)
