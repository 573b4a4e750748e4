"""HORA: Hit-Utility Optimal Rollout Allocation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from groupwise.advantages import Standardised
from groupwise.data import Draw, Rollout, Sampler, Strategy
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Clip, Objective, group_mean
from groupwise.rollout.curricula.answer_allocation import give_greedily
from groupwise.rollout.strategies.multi_round import attempts, graded

__all__ = ["PilotAllocation", "hora"]

Posterior = tuple[float, float]
"""The two parameters of a Beta distribution of a success rate."""


@dataclass(frozen=True, slots=True)
class PilotAllocation(Strategy):
    """`pilot_count` answers to each prompt; each further one where it most raises the chance of a correct one. HORA.

    The posterior of a success rate is Beta(a + correct, b + others), with (a, b) the `beta_prior`. Each further answer
    goes to the prompt where it most increases the probability that one further answer is correct, summed over the
    round. A prompt's pilots and further answers are one group; the round has as many answers as without pilots.
    arXiv:2605.07114.
    """

    pilot_count: int = 4
    beta_prior: Posterior = (1.0, 1.0)

    def __post_init__(self) -> None:
        if self.pilot_count < 1 or min(self.beta_prior) <= 0:
            raise ValueError(f"{self}: needs pilot_count >= 1 and both numbers of beta_prior > 0")

    @property
    def least_group_size(self) -> int:
        """The least group size of a method with this strategy: with fewer answers, none is left after the pilots."""
        return self.pilot_count + 1

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        pilots = await attempts(sampler, draw.prompt.token_ids, min(self.pilot_count, draw.n))
        outcomes = graded(pilots)
        a, b = self.beta_prior
        posterior = a + sum(outcomes), b + len(outcomes) - sum(outcomes)
        shared = await sampler.share((posterior, draw.n - len(pilots)))
        answers = sum(left for _, left in shared.values())
        sizes = dict(zip(shared, further_answers(tuple(one for one, _ in shared.values()), answers)))
        return Rollout(draw, (*pilots, *await attempts(sampler, draw.prompt.token_ids, sizes[draw.id])))


@lru_cache(maxsize=8)  # every prompt of a round computes the same allocation
def further_answers(posteriors: Sequence[Posterior], answers: int) -> tuple[int, ...]:
    """How many further answers each prompt gets: one by one, each where it gains most; ties go to the first prompt.

    >>> further_answers(((1, 5), (2, 4), (3, 3), (5, 1)), 16)
    (5, 5, 4, 2)
    """
    sizes = [0] * len(posteriors)
    give_greedily(sizes, range(len(posteriors)), answers, lambda i, n: gain(n, *posteriors[i]))
    return tuple(sizes)


def gain(n: int, a: float, b: float) -> float:
    """How much an answer after n others raises the probability of a correct one, for a pass rate from Beta(a, b).

    `prod over j < n of (b + j) / (a + b + j)` is the probability that n answers are wrong. The gain falls with n.

    >>> round(gain(0, 1, 5), 4), round(gain(1, 1, 5), 4)
    (0.1667, 0.119)
    """
    return math.prod((b + j) / (a + b + j) for j in range(n)) * a / (a + b + n)


def hora(
    *,
    group_size: int = 8,
    pilot_count: int = 4,
    beta_prior: tuple[float, float] = (1.0, 1.0),
    clip: float = 0.2,
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO with half of the answers as pilots, and the others where a first correct answer is most likely to come.

    Equal group sizes can spend too many answers on saturated prompts, and too few on prompts where a few more could
    find a correct one. HORA gives further answers to the prompts where they most raise the estimated probability of a
    correct one. The estimate from pilot answers of the same round is our reading.

    Args:
        group_size: mean number of answers per prompt, pilots included.
        pilot_count: first answers to each prompt, from 1 to below `group_size`.
        beta_prior: Beta distribution of a success rate before the pilots, (a, b), both above 0.
        clip: distance of both clip bounds from 1.
        kl: weight of the KL penalty to the initial policy.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        strategy=PilotAllocation(pilot_count, beta_prior),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Where to Spend Rollouts: Hit-Utility Optimal Rollout Allocation for Group-Based RLVR",
    arxiv="2605.07114",
    evidence="our reading",
    parent="grpo",
    formula="""\
max sum_i H_i(n_i) with sum_i n_i = E, the answers of the round beyond its pilots
H_i(n) = 1 - E[(1 - p)^n] = 1 - prod over j < n of (b_i + j) / (a_i + b_i + j),  p from Beta(a_i, b_i)
a_i = a + correct pilots, b_i = b + other pilots, with the prior Beta(a, b)""",
    differences=(
        PaperDifference("what was read", "abstract and table of contents", "not found", "both"),
        PaperDifference("posterior", "after earlier answers, not specified", "not found", "after pilots (inferred)"),
        PaperDifference("pilots of a group", "not obtained", "not found", "4 of 8 (inferred)"),
        PaperDifference("prior", "uniform; learned ones are no better", "not found", "1, 1: uniform"),
        PaperDifference("allocation batch", "not obtained", "not found", "a sampling round (inferred)"),
        PaperDifference("base", "GRPO; RLOO also works", "not found", "GRPO; strategy is one field of any method"),
        PaperDifference("most answers to a prompt", "not obtained", "not found", "no bound"),
        PaperDifference("clip range, KL coefficient", "not obtained", "not found", "0.2, 0.04 (inferred)"),
        PaperDifference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[hora]",
        "tests/golden/test_budgets.py::test_hit_utility",
        "tests/golden/test_budgets.py::test_further_answers_are_the_best_of_all",
        "tests/golden/test_budgets.py::test_pilots_share_a_budget",
    ),
    expected_effect=ExpectedEffect(
        metric="groups/all_wrong",
        direction="down",
        task="tiny_countdown",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        acted="rollout/most_answers",
        acted_least=9,
    ),
    our_finding="On tiny_countdown the prompt with the most answers has 8.07 of them, where equal groups have 8 (five "
    "seeds): after no or one correct pilot of four, a fourth further answer is worth 0.07 or 0.08, so that the "
    "allocation hardly moves one.",
)
