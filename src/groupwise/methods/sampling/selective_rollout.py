"""Selective Rollout: groups of conversations with nearly equal first turns are stopped early."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from groupwise.advantages import Standardised
from groupwise.data import Draw, Finish, Rollout, Sample, Sampler, Strategy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, policy_gradient, turn_mean
from groupwise.rewards import everything, mixed_outcomes
from groupwise.rollout import AUTO, ConversationState, ModelDependentDefault, dialogue_until, judged
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import UNWORDED
from groupwise.rollout.strategies.sequence_similarity import edit_distance

__all__ = ["EarlyStoppingTurns", "selective_rollout"]


@dataclass(frozen=True, slots=True)
class EarlyStoppingTurns(Strategy):
    """Conversations as in `Turns`.

    A group stops early if its first actions differ by less than `min_action_difference`.

    The difference is the mean edit distance of two sequences of actions, as a share of `compare_after_turns`; an ended
    conversation counts as repeating one action that occurs nowhere else. A stopped group is dropped with the cause
    `alike`: such groups mostly end with equal rewards. An action is a turn's text, from the last `action_marker` on if
    there is one. Selective Rollout, 2026.
    """

    needs_environment: ClassVar[bool] = True
    model_dependent_defaults: ClassVar[dict[str, ModelDependentDefault]] = {
        "action_marker": ModelDependentDefault(
            "", "Action:", "zhiyuanZhai20/selective-rollout, src/prompts.py, ba86cdc"
        )
    }

    max_turns: int = 30
    compare_after_turns: int = 10
    min_action_difference: float = 0.12
    action_marker: str = AUTO

    def __post_init__(self) -> None:
        if not (1 <= self.compare_after_turns < self.max_turns and self.min_action_difference >= 0):
            raise ValueError(
                f"{self}: needs 1 <= compare_after_turns < max_turns and min_action_difference >= 0 (of actions)"
            )

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert self.action_marker != AUTO, UNWORDED
        starts = sampler.start(draw.prompt.token_ids, draw.n)
        first = (
            dialogue_until(ConversationState(s), sampler, s, most=self.max_turns, turns=self.compare_after_turns)
            for s in starts
        )
        dialogues = await together(first)
        if (
            draw.n > 1
            and divergence([actions(t.sample, self.action_marker) for t in dialogues], self.compare_after_turns)
            < self.min_action_difference
        ):
            stopped = (t.sample if t.has_ended else t.sample.with_finish(Finish.cut) for t in dialogues)
            return Rollout(draw, tuple(stopped), selected=(False,) * draw.n, cause="alike")
        rest = (dialogue_until(t, sampler, start, most=self.max_turns) for t, start in zip(dialogues, starts))
        return Rollout(draw, await judged(await together(rest), sampler))


def actions(sample: Sample, marker: str = "") -> list[str]:
    """The action in each turn of the model: its text, or the part from the last `marker` on if there is one."""
    ends = (0, *sample.token_ends)
    texts = [sample.text[ends[first] : ends[last]] for first, last in sample.turns]
    return [(text.rpartition(marker)[2] if marker else text).strip() for text in texts]


def divergence(sequences: Sequence[Sequence[str]], length: int) -> float:
    """The mean edit distance over all pairs of sequences, cut or padded to `length`, divided by `length`.

    >>> round(divergence(["abcde", "abxde", "pqrst", "abc"], 5), 6)
    0.7
    """
    padded = [[*sequence[:length], *[None] * (length - len(sequence))] for sequence in sequences]
    pairs = list(combinations(padded, 2))
    return sum(edit_distance(a, b) for a, b in pairs) / length / max(len(pairs), 1)


def selective_rollout(
    *,
    group_size: int = 8,
    after: int = 10,
    below: float = 0.12,
    max_turns: int = 30,
    action_marker: str = "auto",
    mixed: bool = False,
) -> Method:
    """Stops and drops groups whose conversations begin with nearly equal actions; all other turns weigh the same.

    Many groups of long conversations can end with equal rewards: their cost is wasted, and they dilute the mean of the
    loss. Selective Rollout compares the first actions of a group, and stops and drops the group if they are nearly
    equal.

    Args:
        group_size: conversations per prompt.
        after: turns before the comparison, from 1 to below `max_turns`, K.
        below: mean edit distance per action below which a group is stopped, at least 0, d_L.
        max_turns: largest number of turns in a conversation.
        action_marker: text after which a turn's action begins; empty takes the whole turn; `auto`: by the model.
        mixed: whether to drop groups with equal outcomes too, as in DAPO.
    """
    return Method(
        group_size=group_size,
        strategy=EarlyStoppingTurns(max_turns, after, below, action_marker),
        filter=mixed_outcomes if mixed else everything,
        advantage=(Standardised(ddof=0, eps=1e-8),),
        objective=Objective(surrogate=policy_gradient, aggregate=turn_mean),
    )


REFERENCE = PaperReference(
    paper="Selective Rollout: Mid-Trajectory Termination for Multi-Sample Agent RL",
    year=2026,
    evidence="code read",
    code="zhiyuanZhai20/selective-rollout@ba86cdc4d9cbfb5032a05ec99087a69a9aa2d95f:scripts/19_grpo_onpolicy.py",
    parent="grpo",
    formula="""\
a group is stopped and dropped if d_K < d_L,  d_K = mean over pairs of lev(a_i, a_j) / K, actions padded to K
L = - 1/N sum over (conversation, turn) of A_i mean_t log pi(o_t),  N the number of turns in the batch
A_i = (r_i - mean(r)) / (std(r) + 1e-8)""",
    differences=(
        PaperDifference("K, d_L, most turns", "10, 0.12, 30", "10, 0.12, 30", "10, 0.12, 30"),
        PaperDifference("a second clause", "rejected", "also at 90 % ended conversations, by default", "none"),
        PaperDifference("short first conversation", "padded", "then no gate", "padded"),
        PaperDifference(
            "action", "what the environment gets", "parsed after a word", "a turn's text; action_marker = WORD"
        ),
        PaperDifference("turns of an update", "at most 64, drawn", "at most 64, drawn", "all"),
        PaperDifference("context of a turn", "its history, in a new prompt", "cut at 1024 tokens", "the conversation"),
        PaperDifference(
            "equal rewards after the gate", "stay, or DAPO's filter", "stay", "stay; mixed = true drops them"
        ),
        PaperDifference("choice of K and d_L", "offline, by precision 0.8", "scripts", "not offered"),
        PaperDifference("group size", "8", "8", "8"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[selective_rollout]",
        "tests/golden/test_budgets.py::test_divergence",
        "tests/golden/test_budgets.py::test_alike_conversations_are_stopped",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="down",
        task="big_sums",
        parent="grpo",
        min_difference=1.0,
        runs_matched_by="iterations",
        own_settings=("method.strategy.compare_after_turns = 1",),
        kept="eval/accuracy_greedy",
    ),
)
