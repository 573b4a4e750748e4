"""IPO: Identity Preference Optimization."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Logp, NeededMeasure, Surrogate, UnsplitUnit
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import STORED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, log_ratio_to, over_pairs, pair_mean, pairs
from groupwise.rollout import ShuffledRows, Stored

__all__ = ["IdentityPreference", "ipo"]


@dataclass(frozen=True, slots=True)
class IdentityPreference(Surrogate):
    """`-(d_better - d_worse - 1 / (2 beta))^2` per pair of a group, d the log-ratio to the reference.

    d is a mean over tokens, or a sum. IPO, arXiv:2310.12036, equation 17. For the aggregate `pair_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    beta: float = 0.1
    token_reduction: Literal["mean", "sum"] = "mean"
    reference_model: str = "reference"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta is {self.beta}: the margin is 1 / (2 beta)\nuse a number above 0, such as 0.1")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp(self.reference_model)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        d = log_ratio_to(b, self.reference_model, self.token_reduction)
        better, worse = pairs(b)
        return over_pairs(b, better, -((d[better] - d[worse] - 1 / (2 * self.beta)) ** 2))

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return self.beta * log_ratio_to(b, self.reference_model, self.token_reduction)


def ipo(*, beta: float = 0.1, minibatches: int = 1) -> Method:
    """A squared loss on stored pairs: the difference of log-ratios should be 1 / (2 beta), and no more.

    Where a pair has one clear winner, DPO's loss falls as long as the difference grows, so that its KL term loses its
    effect. A squared distance from a finite margin keeps the policy near the reference.

    Args:
        beta: strength of the regularisation, tau in the paper; the margin is 1 / (2 beta).
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=2,
        curriculum=ShuffledRows(),
        strategy=Stored(("chosen", "rejected")),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=IdentityPreference(beta), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="A General Theoretical Paradigm to Understand Learning from Human Preferences",
    arxiv="2310.12036",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/dpo_trainer.py",
    parent="dpo",
    formula="""\
J = - mean over pairs of (d_w - d_l - 1 / (2 beta))^2
d = 1/|y| sum_t log(pi(y_t) / pi_ref(y_t)); w is chosen, l is rejected""",
    differences=(
        PaperDifference(
            "d", "a sum over tokens", "TRL: a mean, confirmed by the authors", "a mean; a sum by token_reduction"
        ),
        PaperDifference("beta", "tau, 0.1 to 1 in bandits", "TRL: 0.1", "0.1"),
        PaperDifference("reference", "not specified", "TRL: the model at the start", "the model at the start"),
        PaperDifference("minibatches", "not specified", "TRL: 1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[ipo]",
        "tests/golden/test_methods.py::test_whole_path[ipo, sum]",
        "tests/golden/test_stored.py::test_the_first_loss_of_pairs",
    ),
    tuned_settings=(("method.objective.surrogate.beta = 0.1",), ("method.objective.surrogate.beta = 1.0",)),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="dpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(*STORED_SUMS, "iterations = 60"),
    ),
)
