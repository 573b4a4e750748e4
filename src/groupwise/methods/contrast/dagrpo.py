"""DaGRPO: distinctiveness-aware GRPO, with anchors for hard prompts."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, Routed, ShapedLikelihood, token_mean, written_tokens
from groupwise.rewards import Correctness, Distinct
from groupwise.rollout import Anchored

__all__ = ["dagrpo"]


def dagrpo(
    *,
    group_size: int = 8,
    part: str = "chain_true",
    distance: float = 0.2,
    column: str = "solution",
    gamma: float = 0.1,
    minibatches: int = 4,
) -> Method:
    """GRPO without answers that resemble the other outcome's. Groups without a correct answer get a solution."""
    return Method(
        group_size=group_size,
        strategy=Anchored(column),
        filter=Distinct(part, distance),
        shaping=(Correctness(),),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Routed(written_tokens, ShapedLikelihood(gamma), Clip()), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper=(
        "DaGRPO: Rectifying Gradient Conflict in Reasoning via Distinctiveness-Aware Group Relative Policy Optimization"
    ),
    arxiv="2512.06337",
    label="our reading",
    parent="grpo",
    formula="""\
J = 1/Z [ sum over kept answers and tokens of min(r A, clip(r) A) + sum over anchors' tokens of p / (p + gamma) A ]
kept: an answer whose score differs by 0.2 from one of the other outcome; anchors: written solutions of hard groups""",
    differences=(
        Difference(
            "distinctiveness", "a fine score of an LLM", "not found", "difference of a part of the verdict (inferred)"
        ),
        Difference(
            "anchors", "expert solutions for hard prompts", "not found", "one, where no answer is correct (inferred)"
        ),
        Difference("anchors' tokens", "off-policy", "not found", "p / (p + 0.1), as LUFFY (inferred)"),
        Difference("statistics", "of the group", "not found", "of the kept answers (inferred)"),
        Difference("constants", "not obtained", "not found", "0.2, 0.1, 8 (inferred)"),
        Difference("minibatches", "not obtained", "not found", "4 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[dagrpo]",
        "tests/golden/test_contrast.py::test_distinct_answers",
        "tests/golden/test_contrast.py::test_an_anchor_joins_a_hard_group",
        "tests/golden/test_contrast.py::test_shaped_likelihood",
    ),
    effect=Effect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.1,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16", "method.objective.penalties = []"),
        own_settings=("method.filter.part = progress",),
    ),
    finding="With written solutions no group of hinted_sums is without signal; with GRPO a quarter of the groups is.",
)
