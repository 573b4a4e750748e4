"""S-GRPO: reasoning is cut at several places to answer early, and earlier correct answers get more reward."""

from groupwise.advantages import centred
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import EarlyExitReward
from groupwise.rollout import EarlyExits

__all__ = ["s_grpo"]


def s_grpo(
    *,
    group_size: int = 8,
    inducer: str = "auto",
    ends: str = "auto",
    base: float = 0.5,
    clip: float = 0.2,
    minibatches: int = 1,
) -> Method:
    """One reasoning, cut at several places to answer early. The earliest correct answer has the highest reward."""
    return Method(
        group_size=group_size,
        strategy=EarlyExits(inducer, ends),
        shaping=(EarlyExitReward(base),),
        advantage=(centred,),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="S-GRPO: Early Exit via Reinforcement Learning in Reasoning Models",
    arxiv="2505.07686",
    label="our reading",
    parent="grpo",
    formula="""\
O_i = thought up to a drawn place, inducer, answer, for m places; O_0 = the whole answer
R_i = 2^-(K_i - 1) if correct, K_i the number of correct answers up to exit i; A_i = R_i - mean(R)""",
    differences=(
        Difference("aggregate", "sequences", "not found", "token_mean: only then do shared prefixes cancel"),
        Difference("std", "none (recalled)", "not found", "none"),
        Difference("mask", "not specified", "not found", "the inducer (inferred)"),
        Difference("places", "distinct, drawn", "not found", "distinct, drawn"),
        Difference("exits, base, clip range", "not obtained", "not found", "7 of a group of 8; 0.5; 0.2 (inferred)"),
        Difference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[s_grpo]",
        "tests/golden/test_rollout.py::test_early_exits",
        "tests/golden/test_rollout.py::test_exit_rewards",
    ),
    effect=Effect(
        metric="eval/mean_length",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        least=2.0,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 64", "method.objective.penalties = []"),
    ),
)
