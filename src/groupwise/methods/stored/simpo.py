"""SimPO: Simple Preference Optimization."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, Surrogate, UnsplitUnit
from groupwise.methods.effect_settings import STORED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, over_pairs, pair_mean, pairs
from groupwise.rollout import ShuffledRows, Stored

__all__ = ["MarginPreference", "simpo"]


@dataclass(frozen=True, slots=True)
class MarginPreference(Surrogate):
    """`log sigmoid(beta (m_better - m_worse) - gamma)` per pair of a group, m the mean log-prob of an answer's tokens.

    SimPO, arXiv:2405.14734, equation 6. For the aggregate `pair_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    beta: float = 2.0
    gamma: float = 0.5

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        reward = self.implicit_reward(b)
        better, worse = pairs(b)
        return over_pairs(b, better, logsigmoid(reward[better] - reward[worse] - self.gamma))

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return self.beta * b.sequences.mean(b.logp)


def simpo(*, beta: float = 2.0, gamma: float = 0.5, minibatches: int = 1) -> Method:
    """A logistic loss on stored pairs without a reference: mean log-probs should differ by a margin.

    DPO's reward is a log-ratio, but generation follows the log-prob, and a sum grows with the length. A mean over
    tokens is what generation maximises, and a margin asks for more than the right order. No second model is held.

    Args:
        beta: factor of the difference of mean log-probs, beta.
        gamma: margin of the difference, gamma.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=2,
        curriculum=ShuffledRows(),
        strategy=Stored(("chosen", "rejected")),
        objective=Objective(surrogate=MarginPreference(beta, gamma), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="SimPO: Simple Preference Optimization with a Reference-Free Reward",
    arxiv="2405.14734",
    evidence="code read",
    code="princeton-nlp/SimPO@1b3e8f3528a23bce3da514a2dce8ea7490d4bc75:scripts/simpo_trainer.py",
    parent="dpo",
    formula="""\
J = mean over pairs of log sigmoid(beta (m_w - m_l) - gamma)
m = 1/|y| sum_t log pi(y_t | x, y_<t); w is chosen, l is rejected""",
    differences=(
        PaperDifference("beta", "2.0 to 2.5 (recalled)", "2.0; 10 may be better", "2.0"),
        PaperDifference("gamma", "0.3 to 1.6 (recalled)", "0.25 of beta: 0.5; tune 0.25 to 0.4 of beta", "0.5"),
        PaperDifference("supervised term", "none", "a weight, 0", "none"),
        PaperDifference("minibatches", "not specified", "1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[simpo]",
        "tests/golden/test_stored.py::test_the_first_loss_of_pairs",
    ),
    tuned_settings=(
        ("method.objective.surrogate.beta = 2.0", "method.objective.surrogate.gamma = 0.5"),
        ("method.objective.surrogate.beta = 10.0", "method.objective.surrogate.gamma = 3.0"),
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="dpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(*STORED_SUMS, "iterations = 6"),
    ),
)
