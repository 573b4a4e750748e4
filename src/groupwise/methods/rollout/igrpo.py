"""iGRPO: the best of several drafts is in the prompt."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, group_mean
from groupwise.rollout import Drafts

__all__ = ["igrpo"]


def igrpo(*, group_size: int = 8, drafts: int = 8, words: str = "auto", minibatches: int = 1) -> Method:
    """GRPO on answers that follow the best of several drafts in their prompt. Drafts are not trained."""
    return Method(
        group_size=group_size,
        strategy=Drafts(drafts, words),
        advantage=(Standardised(),),
        objective=Objective(aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="iGRPO: Self-Feedback-Driven LLM Reasoning",
    arxiv="2602.09000",
    label="our reading",
    parent="grpo",
    formula="""\
d* = the draft with the highest reward of d_1, ..., d_N from pi_old(. | q)
o_1, ..., o_G from pi_old(. | q, d*); GRPO's objective under the prompt with d*""",
    differences=(
        Difference("drafts, group size", "not obtained", "not found", "8 and 8 (inferred)"),
        Difference("ties of the drafts", "not specified", "not found", "a keyed draw (inferred)"),
        Difference("template", "question, draft, request", "not found", "words"),
        Difference("a draft that leaves no room", "not specified", "not found", "the plain prompt (inferred)"),
        Difference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[igrpo]",
        "tests/golden/test_rollout.py::test_drafts_and_refinements",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("method.objective.penalties = []", "evaluate.strategy = Drafts"),
    ),
)
