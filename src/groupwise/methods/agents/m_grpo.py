"""M-GRPO: a main agent and its helpers; main agents are compared with each other, and helpers with helpers."""

from typing import Literal

from groupwise.advantages import Queued, Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, group_mean
from groupwise.rewards import Correctness, WrongIs
from groupwise.rollout import Delegating

__all__ = ["m_grpo"]


def m_grpo(
    *,
    group_size: int = 8,
    calls: int = 4,
    align: Literal["per_query", "fifo"] = "per_query",
    wrong: float = 0.1,
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 1,
) -> Method:
    """Main agents of a prompt are one group, their helpers another. A helper inherits its main agent's success."""
    return Method(
        group_size=group_size,
        strategy=Delegating(calls, aligned=calls if align == "per_query" else 0),
        trains=("answer", "helper"),
        shaping=(Correctness(), WrongIs(wrong)),
        advantage=(Standardised() if align == "per_query" else Queued(),),
        objective=Objective(surrogate=Clip(low, high), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO",
    arxiv="2511.13288",
    label="code read earlier",
    parent="grpo",
    formula="""\
R_main = 1 correct, 0.1 wrong, 0 malformed;  R_helper = the same by its main agent's success, 0 if itself malformed
A = (R - mean) / std over the main agents of a prompt, and over its helpers; PPO's clip, no KL""",
    differences=(
        Difference("policies", "two, on two servers", "two", "one policy in both roles"),
        Difference("steps", "asynchronous", "each agent its own trainer", "one step; both roles weigh the same"),
        Difference("main reward", "weighted format and correctness", "1, 0.1, 0", "1, 0.1, 0"),
        Difference("helper reward", "format, main outcome, expert", "format, main outcome: 1, 0.1, 0", "1, 0.1, 0"),
        Difference(
            "helpers of a main agent",
            "a fixed number: dropped or copied at random (recalled)",
            "a queue of all prompts, 8 in a row are a group",
            'align = "per_query", or "fifo" within an iteration',
        ),
        Difference("most calls", "not obtained", "20 turns", "4 (inferred)"),
        Difference("group size", "not obtained", "8", "8"),
        Difference("clip range, KL", "not obtained", "0.2 and 0.28, 0", "0.2 and 0.28, none"),
        Difference("minibatches", "not obtained", "1", "1"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[m_grpo]",
        "tests/golden/test_agents.py::test_helpers_inherit_success",
        "tests/golden/test_agents.py::test_aligned_helpers",
        "tests/golden/test_agents.py::test_without_calls_it_is_one_agent",
        "tests/golden/test_agents.py::test_queue_of_helpers",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="delegated_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("evaluate.strategy = Delegating",),
    ),
)
