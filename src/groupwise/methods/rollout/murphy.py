"""MURPHY: failed attempts are refined with feedback, and later success is credited to them."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Clip, Objective, group_mean
from groupwise.rewards import PartReward
from groupwise.rollout import FeedbackTree

__all__ = ["murphy"]


def murphy(
    *,
    group_size: int = 8,
    turns: int = 2,
    back: Literal["best", "mean"] = "best",
    gamma: float = 0.9,
    widest: int = 0,
    extremes: int = 0,
    words: str = "auto",
    clip: float = 0.2,
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO on a tree of attempts and their refinements with feedback; scores of refinements come back to attempts."""
    return Method(
        group_size=group_size,
        strategy=FeedbackTree(turns, back, gamma, widest, extremes, words),
        trains=("answer", "refinement"),
        shaping=(PartReward("returned"),),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="MURPHY: Feedback-Aware GRPO with Retrospective Credit Assignment for Multi-Turn Code Generation",
    arxiv="2511.07833",
    label="our reading",
    parent="grpo",
    formula="""\
each attempt n with r(n) < 1 gets G refinements from q, the attempt, and its feedback; siblings are a group
MaRS: R(n) = max(r(n), max over its refinements R(c))
MeRS: R(n) = (r(n) + gamma mean over its refinements R(c)) / (S - s(n) + 1) at turn s(n) of S
A(n) = (R(n) - mean over siblings R) / std over siblings R; GRPO's objective over all attempts""",
    differences=(
        Difference("credit", "MaRS and MeRS", "third party: both", "back = best; mean is MeRS"),
        Difference(
            "MeRS", "not obtained", "third party: this form, gamma 0.9", "this form, gamma 0.9; a leaf is not divided"
        ),
        Difference(
            "pruning", "between and within groups", "third party: by std; extremes; 3", "off: widest = 0, extremes = 0"
        ),
        Difference("order", "not obtained", "not found", "credit, pruning, advantages (inferred)"),
        Difference("history", "prompt tokens", "not found", "prompt tokens, written again in words"),
        Difference("group size, turns", "8 or 4; 2 and more", "not found", "8; 2"),
        Difference("KL, clip range, minibatches", "not obtained", "not found", "0.04, 0.2 and 1 (inferred)"),
        Difference("metrics", "of the last turn", "not found", "of first attempts; refinements have another role"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[murphy]",
        "tests/golden/test_trees.py::test_scores_come_back_to_attempts",
        "tests/golden/test_trees.py::test_pruning_selects_groups_and_members",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.02,
        matched="tokens",
        settings=("prompts = 32", "method.objective.penalties = []"),
        own_settings=("prompts = 4",),
    ),
    finding="Where refinements mostly succeed, MaRS gives all first attempts the same score. On hinted_sums, where "
    "the feedback is the next step, 14 to 19 of 80 groups of first attempts had a signal, and 454 to 481 of "
    "640 with GRPO. First attempts are evaluated; with MeRS, too, their accuracy stays at 0.10, and 98 % of "
    "the tokens are refinements (one seed). The paper refines programs, over several turns. An iteration "
    "generates 12 times the tokens of GRPO; the effect was first stated for equal prompts, where no "
    "evaluation of both fell within equal tokens, and then for 4 prompts against 32.",
)
