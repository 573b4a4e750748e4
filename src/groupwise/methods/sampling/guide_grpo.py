"""Guide-GRPO: answers that were sampled with a hint are trained as answers to the prompt without it."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean
from groupwise.rollout import HintEscalation, RowHints

__all__ = ["guide_grpo"]


def guide_grpo(*, group_size: int = 8, column: str = "hints", clip: float = 0.2, minibatches: int = 1) -> Method:
    """GRPO; failed groups are sampled again with a hint, and learned under the prompt without it.

    Problems for which every answer fails contribute nothing to GRPO. Guide-GRPO samples such groups again with a hint,
    and corrects the ratio so that the policy learns these answers without the hint. A group of the hinted answers alone
    is our reading.

    Args:
        group_size: answers per prompt in each group.
        column: column of the data row that holds the hints; the first hint is used.
        clip: distance of both clip bounds from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=HintEscalation(RowHints(column), max_hints=1, trained_prompt="plain"),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=group_mean),
        minibatches=minibatches,
        old_logprobs="engine",
    )


REFERENCE = PaperReference(
    paper="Adaptive Guidance Accelerates Reinforcement Learning of Reasoning Models",
    arxiv="2506.13923",
    evidence="paper read",
    parent="grpo",
    formula="""\
rho_it = pi(o_it | q, o_i<t) / pi_old(o_it | c_i, o_i<t); c_i = q with a hint where all plain answers are wrong, else q
J = GRPO's objective with rho""",
    differences=(
        PaperDifference(
            "group of a hinted prompt", "not specified", "not found", "the hinted answers alone (inferred)"
        ),
        PaperDifference("hint", "strategy, by a stronger model", "not found", "the first of a column of the row"),
        PaperDifference("clip of hinted answers", "not specified", "not found", "0.2, as the others (inferred)"),
        PaperDifference("old policy", "the engine's", "not found", "the engine's log-probs, under the hinted prompt"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[guide_grpo]",
        "tests/golden/test_rollout.py::test_guided_answers_are_trained_plain",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.objective.penalties = []",),
        acted="rollout/other_prompt",
        acted_least=1.0,
    ),
)
