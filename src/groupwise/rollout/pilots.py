"""`Pilots`: a sampling strategy that tries each prompt a few times, then spends the other answers where they help."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from groupwise.data import Draw, Rollout, Sampler, Strategy
from groupwise.rollout.allocation import give_greedily
from groupwise.rollout.attempts import attempts, graded

__all__ = ["Pilots"]

Posterior = tuple[float, float]
"""The two parameters of a Beta distribution of a success rate."""


@dataclass(frozen=True, slots=True)
class Pilots(Strategy):
    """`pilots` answers to each prompt; each further one goes where it most raises the chance of a correct answer. HORA.

    The posterior of a success rate is Beta(a + correct, b + others), with (a, b) the `prior`. Each further answer goes
    to the prompt where it most increases the probability that one further answer is correct, summed over the round. A
    prompt's pilots and further answers are one group; the round has as many answers as without pilots.
    arXiv:2605.07114.
    """

    pilots: int = 4
    prior: Posterior = (1.0, 1.0)

    def __post_init__(self) -> None:
        if self.pilots < 1 or min(self.prior) <= 0:
            raise ValueError(f"{self}: needs pilots >= 1 and both numbers of prior > 0")

    @property
    def least_group_size(self) -> int:
        """The least group size of a method with this strategy: with fewer answers, none is left after the pilots."""
        return self.pilots + 1

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        pilots = await attempts(sampler, draw.prompt.context, min(self.pilots, draw.n))
        outcomes = graded(pilots)
        a, b = self.prior
        posterior = a + sum(outcomes), b + len(outcomes) - sum(outcomes)
        shared = await sampler.share((posterior, draw.n - len(pilots)))
        answers = sum(left for _, left in shared.values())
        sizes = dict(zip(shared, further_answers(tuple(one for one, _ in shared.values()), answers)))
        return Rollout(draw, (*pilots, *await attempts(sampler, draw.prompt.context, sizes[draw.id])))


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
