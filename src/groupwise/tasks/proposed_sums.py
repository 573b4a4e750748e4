"""The task `proposed_sums`: sums whose answers end in a new sum, `7*5=35;35+8=43;#43;2+9*3=`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from groupwise.tasks.calculator import LARGEST, demonstrations, is_held_out, solve
from groupwise.tasks.sums import Sums, random_problem

__all__ = ["ProposedSums", "proposed_problem"]

SIZES = {4: 2048, 5: 2048}
DEMONSTRATIONS, CHAIN_SHARE, SEED = 4096, 0.35, 6
NEW_OPERANDS = (3, 4, 5, 6)
_SUM = re.compile(r"[1-9](?:[-+*][2-9]){1,7}=")


@dataclass(frozen=True, slots=True)
class ProposedSums(Sums):
    """Sums whose answers propose a new sum: 4,096 problems to train on, 512 held-out ones."""

    problem_count_by_operands: ClassVar[Mapping[int, int]] = SIZES


def proposal_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems: right answers, each followed by a new problem."""
    random = Random("demonstrations of proposals")
    for problem, answer in demonstrations(SEED, DEMONSTRATIONS, CHAIN_SHARE):
        yield {"prompt": problem, "answer": f"{answer};{random_problem(random, NEW_OPERANDS)}"}


def proposed_problem(text: str) -> str:
    """The new problem that an answer proposes at its end; empty without one, or if it must not be trained on.

    A problem needs two to eight operands and running totals from 0 to 49, and must not be held out.

    >>> proposed_problem("7*5=35;#35;2+9*3="), proposed_problem("#35;2+9="), proposed_problem("#35;2-9=")
    ('2+9*3=', '2+9=', '')
    """
    problem = text.partition("#")[2].partition(";")[2]
    if not _SUM.fullmatch(problem) or is_held_out(problem):
        return ""
    totals = [int(step.partition("=")[2]) for step in solve(problem)[0].split(";")[:-1]]
    return problem if all(0 <= total <= LARGEST for total in totals) else ""
