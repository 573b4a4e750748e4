"""ORPO: Odds Ratio Preference Optimization."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, Surrogate, UnsplitUnit
from groupwise.methods.effect_settings import STORED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, over_pairs, pair_mean, pairs
from groupwise.rollout import ShuffledRows, Stored

__all__ = ["OddsRatio", "orpo"]

CERTAIN = -1e-6
"""The largest mean log-prob of an answer: the odds of an answer that is certain are infinite."""


@dataclass(frozen=True, slots=True)
class OddsRatio(Surrogate):
    """`m_better + beta log sigmoid(log odds(m_better) - log odds(m_worse))` per pair of a group.

    m is the mean log-prob of an answer's tokens, and `log odds(m) = m - log(1 - e^m)`. ORPO, arXiv:2403.07691,
    equations 6 and 7. For the aggregate `pair_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    beta: float = 0.1

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        m = b.sequences.mean(b.logp)
        better, worse = pairs(b)
        odds = log_odds(m)
        return over_pairs(b, better, m[better] + self.beta * logsigmoid(odds[better] - odds[worse]))

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return self.beta * b.sequences.mean(b.logp)


def log_odds(m: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """`log(p / (1 - p))` of `p = e^m`; m is at most `CERTAIN`.

    >>> log_odds(torch.tensor([0.5]).log()).item()
    0.0
    """
    m = m.clamp(max=CERTAIN)
    return m - torch.log(-torch.expm1(m))


def orpo(*, beta: float = 0.1, minibatches: int = 1) -> Method:
    """Supervised loss on the chosen answer, plus a logistic loss on the odds ratio to the rejected one.

    Supervised loss alone raises the probability of unwanted answers, too. A small term on the ratio of the odds of both
    answers holds them down, in one phase and without a reference.

    Args:
        beta: weight of the term of the odds ratio, lambda in the paper.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=2,
        curriculum=ShuffledRows(),
        strategy=Stored(("chosen", "rejected")),
        objective=Objective(surrogate=OddsRatio(beta), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="ORPO: Monolithic Preference Optimization without Reference Model",
    arxiv="2403.07691",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/experimental/orpo/orpo_trainer.py",
    parent="dpo",
    formula="""\
J = mean over pairs of [ m_w + beta log sigmoid(log odds_w - log odds_l) ]
m = 1/|y| sum_t log pi(y_t | x, y_<t),  odds = e^m / (1 - e^m); w is chosen, l is rejected""",
    differences=(
        PaperDifference("beta", "lambda, 0.1 to 0.25 (recalled)", "TRL: 0.1", "0.1"),
        PaperDifference(
            "supervised term", "tokens of the answer", "TRL: tokens of prompt and answer", "tokens of the answer"
        ),
        PaperDifference("its mean", "over tokens, then pairs", "TRL: over all tokens", "over tokens, then pairs"),
        PaperDifference("certain answers", "not specified", "TRL: infinite odds", "mean log-prob at most -1e-6"),
        PaperDifference("minibatches", "not specified", "TRL: 1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[orpo]",
        "tests/golden/test_stored.py::test_a_certain_answer_has_finite_odds",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="sft",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(*STORED_SUMS, "iterations = 6"),
    ),
)
