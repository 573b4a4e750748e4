"""Syn-GRPO: the policy proposes problems, and is rewarded for diverse answers to them."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, group_mean
from groupwise.rewards import AddPart, AddReadable, Score
from groupwise.rollout import ProblemSource, Proposing, SumProposals, Synthesised

__all__ = ["syn_grpo"]


def syn_grpo(
    *,
    group_size: int = 8,
    share: float = 0.5,
    rate: float = 0.05,
    diverse: float = 0.5,
    source: ProblemSource = SumProposals(),  # noqa: B008
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """GRPO; answers also propose problems, drawn later. A proposal of a kind with diverse answers earns more reward."""
    return Method(
        group_size=group_size,
        curriculum=Synthesised(share, rate),
        strategy=Proposing(source=source),
        shaping=(Score(), AddReadable(1.0), AddPart("diverse", diverse)),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Syn-GRPO: Self-Evolving Data Synthesis for MLLM Perception Reasoning",
    arxiv="2511.19343",
    label="our reading",
    parent="grpo",
    formula="""\
div(q) = std of the accuracy rewards of q's group; D = moving average of div
r_div = clip((div(q') - D) / D, -1, 1) for a problem q' that an answer proposed
R_i = accuracy + format + 0.5 r_div; GRPO's objective""",
    differences=(
        Difference(
            "problems", "images, repainted by a model", "not obtained", "text that the policy writes (inferred)"
        ),
        Difference("server", "asynchronous", "not obtained", "the curriculum; it never waits"),
        Difference("credit", "not readable", "not obtained", "mean of r_div over problems of the same kind (inferred)"),
        Difference("diversity", "variance of the accuracy", "not obtained", "std (inferred)"),
        Difference("smoothing", "against the current diversity", "not obtained", "moving average, 0.05 (inferred)"),
        Difference("share of new problems", "not obtained", "not obtained", "0.5 (inferred)"),
        Difference("weight of r_div", "not obtained", "not obtained", "0.5 (inferred)"),
        Difference("KL", "not obtained", "not obtained", "none (inferred)"),
        Difference("group size, clip range, minibatches", "not obtained", "not obtained", "8, 0.2 and 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[syn_grpo]",
        "tests/golden/test_memory.py::test_proposed_problems_are_drawn_and_credited_by_kind",
    ),
    effect=Effect(
        metric="entropy",
        direction="up",
        task="proposals",
        parent="grpo",
        least=0.02,
        matched="steps",
        settings=("method.objective.penalties = []",),
    ),
)
