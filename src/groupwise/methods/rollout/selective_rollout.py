"""Selective Rollout: groups of conversations with nearly equal first turns are stopped early."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, policy_gradient, turn_mean
from groupwise.rewards import everything, mixed_outcomes
from groupwise.rollout import GatedTurns

__all__ = ["selective_rollout"]


def selective_rollout(
    *,
    group_size: int = 8,
    after: int = 10,
    below: float = 0.12,
    most: int = 30,
    marker: str = "auto",
    mixed: bool = False,
) -> Method:
    """Stops and drops groups whose conversations begin with nearly equal actions; all other turns weigh the same."""
    return Method(
        group_size=group_size,
        strategy=GatedTurns(most, after, below, marker),
        filter=mixed_outcomes if mixed else everything,
        advantage=(Standardised(ddof=0, eps=1e-8),),
        objective=Objective(surrogate=policy_gradient, aggregate=turn_mean),
    )


REFERENCE = Reference(
    paper="Selective Rollout: Mid-Trajectory Termination for Multi-Sample Agent RL",
    year=2026,
    label="code read",
    code="zhiyuanZhai20/selective-rollout@ba86cdc4d9cbfb5032a05ec99087a69a9aa2d95f:scripts/19_grpo_onpolicy.py",
    parent="grpo",
    formula="""\
a group is stopped and dropped if d_K < d_L,  d_K = mean over pairs of lev(a_i, a_j) / K, actions padded to K
L = - 1/N sum over (conversation, turn) of A_i mean_t log pi(o_t),  N the number of turns in the batch
A_i = (r_i - mean(r)) / (std(r) + 1e-8)""",
    differences=(
        Difference("K, d_L, most turns", "10, 0.12, 30", "10, 0.12, 30", "10, 0.12, 30"),
        Difference("a second clause", "rejected", "also at 90 % ended conversations, by default", "none"),
        Difference("short first conversation", "padded", "then no gate", "padded"),
        Difference("action", "what the environment gets", "parsed after a word", "a turn's text; marker = WORD"),
        Difference("turns of an update", "at most 64, drawn", "at most 64, drawn", "all"),
        Difference("context of a turn", "its history, in a new prompt", "cut at 1024 tokens", "the conversation"),
        Difference("equal rewards after the gate", "stay, or DAPO's filter", "stay", "stay; mixed = true drops them"),
        Difference("choice of K and d_L", "offline, by precision 0.8", "scripts", "not offered"),
        Difference("group size", "8", "8", "8"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[selective_rollout]",
        "tests/golden/test_budgets.py::test_divergence",
        "tests/golden/test_budgets.py::test_alike_conversations_are_stopped",
    ),
    effect=Effect(
        metric="completions/mean_length",
        direction="down",
        task="big_sums",
        parent="grpo",
        least=1.0,
        matched="steps",
        own_settings=("method.strategy.after = 1",),
    ),
)
