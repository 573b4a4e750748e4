"""GRPO with process rewards: a reward for each reasoning step of an answer."""

from groupwise.advantages import Standardised, StepReturns
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Clip, Objective, group_mean

__all__ = ["grpo_process"]


def grpo_process(
    *, group_size: int = 64, mark: str = "step", outcome: float = 0.0, clip: float = 0.2, kl: float = 0.04
) -> Method:
    """GRPO, where a token's advantage is the sum of the z-scored rewards of its step and of all later steps."""
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        credit=StepReturns(mark, outcome),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl, form="k3"),), aggregate=group_mean),
    )


REFERENCE = Reference(
    paper="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    arxiv="2402.03300",
    label="our reading",
    parent="grpo",
    formula="""\
A_it = sum over the steps k of answer i that end at or after t of (r_ik - mean(r)) / std(r)
mean and std over all steps of all answers of the group; the rest as in grpo""",
    differences=(
        Difference("step rewards", "a trained reward model", "not released", "steps of the verdict, by name"),
        Difference("std of all steps", "not specified", "not released", "ddof 1, plus 1e-6; equal steps give 0"),
        Difference("outcome", "not used", "not released", "weight 0; outcome adds grpo's advantage"),
        Difference(
            "tokens after the last step, answers without a step", "not specified", "not released", "advantage 0"
        ),
        Difference("group size, clip range, KL", "as in grpo", "not released", "64, 0.2, 0.04"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[grpo_process]",
        "tests/golden/test_methods.py::test_whole_path[grpo_process, with outcomes]",
        "tests/golden/test_reward.py::test_step_returns",
    ),
    effect=Effect(metric="eval/accuracy", direction="up", task="deduction", parent="grpo", least=0.03, matched="steps"),
)
