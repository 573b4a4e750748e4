"""Reward models: a score of whole answers, trained on preference pairs by the Bradley-Terry model."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, ClassifierScore, NeededMeasure, Surrogate, TokenMark, UnsplitUnit
from groupwise.methods.effect_settings import SLIPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, over_pairs, pair_mean, pairs
from groupwise.rollout import Stored

__all__ = ["BradleyTerry", "bradley_terry"]

MARGIN = TokenMark("margin")
"""The number in the column `margin` of a pair's row."""


@dataclass(frozen=True, slots=True)
class BradleyTerry(Surrogate):
    """`log sigmoid(s_better - s_worse - margin) - centring (s_better + s_worse)^2` per pair of a group.

    s is the score of a reward model, `ClassifierScore`. The number in a row's column `margin` is added to `margin`.
    Llama 2, arXiv:2307.09288, equations 1 and 2; the term of `centring` is equation 2 of arXiv:2312.09244. For the
    aggregate `pair_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"
    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({ClassifierScore(), MARGIN})

    margin: float = 0.0
    centring: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.centring < float("inf"):
            raise ValueError(
                f"centring is {self.centring}: it weighs a penalty\nuse a number of at least 0, such as 0.01"
            )

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = self.implicit_reward(b)
        better, worse = pairs(b)
        margin = self.margin + b.sequences.largest(b[MARGIN].nan_to_num(0.0).to(s.dtype))[better]
        gain = logsigmoid(s[better] - s[worse] - margin) - self.centring * (s[better] + s[worse]) ** 2
        return over_pairs(b, better, gain)

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return b.sequences.total(b[ClassifierScore()])


def bradley_terry(*, margin: float = 0.0, centring: float = 0.0, minibatches: int = 1) -> Method:
    """A reward model: the score of the chosen answer of a stored pair should exceed that of the rejected one.

    Rewards of open-ended answers come from people's comparisons. Under the Bradley-Terry model, the probability that an
    answer is preferred is the sigmoid of the difference of two scores. The model is a decoder with one score in place
    of logits, a sequence classifier of transformers, and the verifier `RewardModel` scores answers with it.

    Args:
        margin: how much larger the score of the chosen answer should be, besides the number in a row's column `margin`.
        centring: weight of the squared sum of the two scores, which keeps their mean near 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=2,
        strategy=Stored(("chosen", "rejected"), closes_turn=True, mark_columns=("margin",)),
        objective=Objective(surrogate=BradleyTerry(margin, centring), aggregate=pair_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Llama 2: Open Foundation and Fine-Tuned Chat Models",
    arxiv="2307.09288",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/reward_trainer.py",
    formula="""\
J = mean over pairs of [ log sigmoid(s_w - s_l - m) - c (s_w + s_l)^2 ]
s = w . h, h the last hidden state of prompt and answer; w is chosen, l is rejected""",
    differences=(
        PaperDifference("margin", "by the rating of the pair, 0 to 3", "TRL: a column, or none", "a column, or 0"),
        PaperDifference("centring", "none; 0.01 in arXiv:2312.09244 (recalled)", "TRL: none", "0"),
        PaperDifference(
            "head at the start", "not specified", "TRL: normal, deviation 0.02", "0: the first loss is log 2"
        ),
        PaperDifference(
            "position of the score", "not specified", "transformers: the last token that is not padding", "the same"
        ),
        PaperDifference("length", "not specified", "TRL: pairs above 1,024 tokens are dropped", "nothing is cut"),
        PaperDifference("end token", "not specified", "TRL: added", "added"),
        PaperDifference("minibatches", "not specified", "TRL: 1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[bradley_terry]",
        "tests/golden/test_methods.py::test_whole_path[bradley_terry, margin and centring]",
        "tests/golden/test_stored.py::test_equal_scores_have_the_loss_ln_2",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/rewards/accuracies",
        direction="down",
        task="hinted_sums",
        parent="dpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=(*SLIPS, "iterations = 60"),
        is_papers=False,
    ),
    our_finding="A score begins at 0, where DPO's implicit reward has the arithmetic of the language model. One run "
    "on 480 pairs with a slip, before the effect was stated, ended at a held-out pair accuracy of 0.520, and DPO's at "
    "0.812 (seed 90). Where answers differ in form, both are right on nearly all pairs after two iterations. The "
    "effect is ours: no paper claims that a score learns less than an implicit reward.",
)
