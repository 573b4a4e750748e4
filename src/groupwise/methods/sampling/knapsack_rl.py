"""Knapsack RL: the answers of a batch, distributed over its prompts."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict

from groupwise.advantages import Bounded, Standardised
from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.methods.effect_settings import REPEATED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import DualClip, Objective, token_mean
from groupwise.rollout import Shuffled
from groupwise.rollout.curricula.answer_allocation import give_greedily
from groupwise.rollout.curricula.shuffled import ShuffledState
from groupwise.rollout.strategies.multi_round import graded

__all__ = ["Knapsack", "knapsack_rl"]


class KnapsackState(TypedDict):
    """State of `Knapsack`: the state of `Shuffled`, and the recent outcomes of each prompt, by id (1: correct)."""

    shuffled_state: ShuffledState
    recent_outcomes: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Knapsack(Curriculum[KnapsackState]):
    """Draws prompts in random order, and gives more answers to prompts where they are worth more. Knapsack RL.

    At a success rate p, n answers are worth `(1 - p^n - (1 - p)^n) p (1 - p)^2`: the probability of a mixed group,
    times the gain of an update on it. The rate of a prompt is the mean of its newest `outcome_window` outcomes, or of
    all its answers in the last iteration if there were more. A prompt with fewer than `min_outcomes` outcomes gets
    `group_size` answers, all others at least `min_answers`. Prompts with a rate between 0 and 1 get as many answers as
    make their groups mixed with probability `target_mixed_probability`; the rest goes to prompts that were never
    solved. A prompt gets more than `max_answers` only if answers would be left over. arXiv:2509.25849.
    """

    tracks_prompts: ClassVar[bool] = True

    min_answers: int = 2
    max_answers: int = 128
    outcome_window: int = 16
    min_outcomes: int = 8
    target_mixed_probability: float = 0.9

    def __post_init__(self) -> None:
        if not (
            1 <= self.min_answers <= self.max_answers
            and 1 <= self.min_outcomes <= self.outcome_window
            and 0 < self.target_mixed_probability < 1
        ):
            fix = (
                "take 1 <= min_answers <= max_answers, 1 <= min_outcomes <= outcome_window, "
                "0 < target_mixed_probability < 1"
            )
            raise ValueError(f"{self}: a field is out of range\n{fix}")

    @property
    def least_group_size(self) -> int:
        """The smallest `group_size` that a method may have with this curriculum: no prompt gets fewer answers."""
        return self.min_answers

    def init(self, task: Task, seed: int) -> KnapsackState:
        return KnapsackState(shuffled_state=Shuffled().init(task, seed), recent_outcomes={})

    def draw(self, state: KnapsackState, task: Task, n: int, group_size: int) -> tuple[KnapsackState, list[Draw]]:
        shuffled, draws = Shuffled().draw(state["shuffled_state"], task, n, group_size)
        rates = [self.rate(state["recent_outcomes"].get(draw.prompt.id, [])) for draw in draws]
        sizes = self.allocate(rates, group_size)
        return {**state, "shuffled_state": shuffled}, [replace(draw, n=size) for draw, size in zip(draws, sizes)]

    def observe(self, state: KnapsackState, rollouts: Sequence[Rollout]) -> KnapsackState:
        outcomes = dict(state["recent_outcomes"])
        for rollout in rollouts:
            key, new = rollout.draw.prompt.id, graded(rollout.samples)
            outcomes[key] = [*new, *outcomes.get(key, [])][: max(self.outcome_window, len(new))]
        return {**state, "recent_outcomes": outcomes}

    def end_iteration(self, state: KnapsackState, rollouts: Sequence[Rollout]) -> KnapsackState:
        return state

    def numbers(self, state: KnapsackState, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics after an iteration."""
        return {"known": sum(self.rate(outcomes) is not None for outcomes in state["recent_outcomes"].values())}

    def rate(self, outcomes: Sequence[int]) -> float | None:
        """The estimated pass rate of a prompt; None if there are too few outcomes."""
        return sum(outcomes) / len(outcomes) if len(outcomes) >= self.min_outcomes else None

    def allocate(self, rates: Sequence[float | None], mean: int) -> list[int]:
        """The number of answers to each prompt, from its pass rate (None if unknown); `mean` is their mean."""
        mixed = {i: p for i, p in enumerate(rates) if p is not None and 0 < p < 1}
        never = [i for i, p in enumerate(rates) if p == 0]
        sizes = [mean if p is None else self.min_answers for p in rates]
        total = mean * len(rates)
        if not mixed:
            return spread(sizes, never, total) if never else [mean] * len(rates)
        others = never or [i for i in range(len(rates)) if i not in mixed]
        surplus = max(total - sum(sizes) - sum(map(self.enough, mixed.values())), 0)
        sizes = spread(sizes, others, sum(sizes) + surplus, self.max_answers)
        give_greedily(sizes, mixed, total - sum(sizes), lambda i, n: further_worth(n, mixed[i]), self.max_answers)
        return spread(sizes, list(mixed), total)

    def enough(self, p: float) -> int:
        """The group size, rounded down, that is mixed with the `target_mixed_probability`; at most `max_answers`."""
        return math.floor(min(self.max_answers, math.log(1 - self.target_mixed_probability) / math.log(max(p, 1 - p))))


def worth(n: int, p: float) -> float:
    """The value of n answers at the success rate p: `(1 - p^n - (1 - p)^n) p (1 - p)^2`.

    >>> round(worth(8, 0.25), 6), worth(1, 0.25)
    (0.126544, 0.0)
    """
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def further_worth(n: int, p: float) -> float:
    """The value of one more answer after n. It falls with n."""
    return worth(n + 1, p) - worth(n, p)


def spread(sizes: Sequence[int], indices: Sequence[int], total: int, most: int = sys.maxsize) -> list[int]:
    """The sizes, with those at `indices` increased as evenly as possible to the sum `total`; none above `max_answers`.

    >>> spread([2, 2, 8], [0, 1], 15), spread([2, 2, 8], [0, 1], 15, most=3)
    ([4, 3, 8], [3, 3, 8])
    """
    larger, answers = list(sizes), total - sum(sizes)
    for k, i in enumerate(indices):
        share = answers // len(indices) + (k < answers % len(indices))
        larger[i] = max(min(sizes[i] + share, most), sizes[i])
    return larger


def knapsack_rl(
    *,
    group_size: int = 8,
    min_answers: int = 2,
    max_answers: int = 128,
    target_mixed_probability: float = 0.9,
    bound: float = 5.0,
    minibatches: int = 8,
) -> Method:
    """GRPO with groups of unequal size: more answers go where they most likely differ and teach most.

    With equal group sizes, easy prompts give groups of correct answers and hard prompts groups of wrong ones, and both
    have no gradient. Knapsack RL keeps the total number of answers, and distributes it to maximise the estimated value
    of all groups.

    Args:
        group_size: mean number of answers per prompt, N.
        min_answers: smallest number of answers to a prompt, at least 1.
        max_answers: largest number of answers to a prompt, exceeded only if answers would be left over.
        target_mixed_probability: probability of a mixed group that is enough for a prompt, between 0 and 1, c.
        bound: largest absolute value of an advantage, above 0.
        minibatches: optimizer steps per iteration, on shuffled answers.
    """
    return Method(
        group_size=group_size,
        curriculum=Knapsack(min_answers, max_answers, target_mixed_probability=target_mixed_probability),
        advantage=(Standardised(), Bounded(bound)),
        objective=Objective(surrogate=DualClip(0.2, 0.28, 10.0), aggregate=token_mean),
        minibatches=minibatches,
        shuffle="samples",
    )


REFERENCE = PaperReference(
    paper="Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation",
    arxiv="2509.25849",
    evidence="code read",
    code="liziniu/KnapsackRL@ca5d5f5b7e933378d916d05d1aeb4ae9de929ee5:verl/trainer/ppo/exploration_utils.py",
    parent="dapo",
    formula="""\
max sum_i V(n_i, p_i) with sum_i n_i = N B and least <= n_i <= most
V(n, p) = [1 - p^n - (1 - p)^n] p (1 - p)^2
p_i = mean of the newest 16 outcomes; n_i = N with fewer than 8 outcomes, n_i = least at p_i = 0 and 1
a surplus beyond sum_i log(1 - c) / log max(p_i, 1 - p_i) goes to prompts with p_i = 0""",
    differences=(
        PaperDifference(
            "solver", "dynamic programming", "dynamic programming", "one by one: exact, as V is concave in n"
        ),
        PaperDifference("a prompt without extra answers", "V(least, p)", "valued 0", "V(least, p)"),
        PaperDifference(
            "who gets the surplus", "not obtained", "p = 0, also unknown prompts", "p = 0, else all but mixed"
        ),
        PaperDifference(
            "all prompts mixed, with a surplus", "not obtained", "fails its sum check", "all to the allocation"
        ),
        PaperDifference("least, most, confidence", "not obtained", "2 (also at p = 0 and 1), 128, 0.9", "2, 128, 0.9"),
        PaperDifference("outcomes kept, enough", "not obtained", "16, 8", "16, 8"),
        PaperDifference("bound of the advantage", "not obtained", "5", "5"),
        PaperDifference("clip range", "not obtained", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        PaperDifference("cap of the ratio", "not obtained", "2, after the mean: no effect", "none"),
        PaperDifference(
            "group size, minibatches", "8; not obtained", "8; 8 of shuffled answers", "8; 8 of shuffled answers"
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[knapsack_rl]",
        "tests/golden/test_methods.py::test_whole_path[knapsack_rl, bound 1]",
        "tests/golden/test_budgets.py::test_worked_allocations",
        "tests/golden/test_budgets.py::test_allocation_equals_dynamic_programming",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="tokens",
        settings=REPEATED_SUMS,
        acted="frac_reward_zero_std",
        acted_least=0.1,
        acted_in="parent",
        plan="whole",
    ),
)
