"""RGR-GRPO: a failed group's best answer is corrected by feedback, and learned."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, Routed, ShapedLikelihood, token_mean, written_tokens
from groupwise.rollout import Refinement

__all__ = ["rgr_grpo"]


def rgr_grpo(
    *,
    group_size: int = 8,
    below: float = 1.0,
    gamma: float = 0.1,
    words: str = "auto",
    minibatches: int = 1,
) -> Method:
    """GRPO whose groups without a good answer get one that the policy corrected with the verifier's feedback."""
    surrogate = Routed(written_tokens, then=ShapedLikelihood(gamma), otherwise=Clip())
    return Method(
        group_size=group_size,
        strategy=Refinement(below, words),
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Reward and Guidance through Rubrics: Promoting Exploration to Improve Multi-Domain Reasoning",
    arxiv="2511.12344",
    label="our reading",
    parent="grpo",
    formula="""\
if max R < theta: y' from pi_old(. | q, best answer, feedback); if R(y') > max R it replaces the worst of the group
J = PPO's clip for sampled tokens, p / (p + gamma) A for those of y'; A over the mixed group""",
    differences=(
        Difference("feedback", "failed criteria of a rubric", "not found", "the verdict's feedback"),
        Difference("threshold theta", "not obtained", "not found", "1: any group without a full score (inferred)"),
        Difference("rewritten answers", "one or more", "not found", "one (inferred)"),
        Difference("off-policy surrogate", "shaped likelihood", "not found", "p / (p + 0.1) (inferred)"),
        Difference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[rgr_grpo]",
        "tests/golden/test_rollout.py::test_refinement_replaces_the_worst",
    ),
    effect=Effect(
        metric="frac_reward_zero_std",
        direction="down",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16", "method.objective.penalties = []"),
    ),
)
