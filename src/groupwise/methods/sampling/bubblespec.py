"""BubbleSpec: speculative decoding of rollouts, with drafts from idle time."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean

__all__ = ["bubblespec"]


def bubblespec(*, group_size: int = 8, clip: float = 0.2) -> Method:
    """GRPO without KL; the recipe's `engine = "Speculative"` samples the same answers in fewer forward passes.

    In synchronous training, processes that finish early wait for the slowest one, and earlier remedies fill this time
    with stale samples. BubbleSpec generates drafts in this time and verifies them under the new weights, so samples
    have the distribution of plain decoding. In our reading, the drafts are earlier answers to the same prompt.

    Args:
        group_size: answers per prompt.
        clip: distance of both clip bounds from 1.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper=(
        "BubbleSpec: Turning Long-Tail Bubbles into Speculative Rollout Drafts for Synchronous Reinforcement Learning"
    ),
    arxiv="2605.08862",
    evidence="our reading",
    contribution_kind="engine",
    parent="grpo",
    formula="""\
y_k ~ pi(. | prefix) with the sample's own keyed random number, for a window of positions in one forward pass
y_k is final; the pass goes on while y_k is the draft's token. So tokens and log-probs are those of plain decoding.""",
    differences=(
        PaperDifference(
            "engine", "speculative decoding", "not found", 'engine = "Speculative", with the bits of Native'
        ),
        PaperDifference(
            "drafts",
            "answers to the next step's prompts, made while faster ranks wait",
            "not found",
            "earlier answers to the same prompt: one process has no waiting ranks",
        ),
        PaperDifference(
            "verification", "exact; rule not obtained", "not found", "the draft is the token that is drawn (inferred)"
        ),
        PaperDifference("rows of drafts", "not obtained", "not found", "those that no sample needs"),
        PaperDifference("window", "not obtained", "not found", "8 (inferred)"),
        PaperDifference("group size, clip range", "not obtained", "not found", "8 and 0.2 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[bubblespec]",
        "tests/golden/test_speculation.py::test_drafts_change_no_bit",
        "tests/golden/test_speculation.py::test_training_has_equal_bits",
        "tests/golden/test_speculation.py::test_a_pass_takes_a_window",
        "tests/golden/test_speculation.py::test_a_draft_is_accepted_where_it_would_be_drawn",
    ),
    unmeasured_reason="Its claim is about forward passes, which tests count: answers and metrics are its parent's.",
)
