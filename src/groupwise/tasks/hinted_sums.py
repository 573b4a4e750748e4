"""The task `hinted_sums`: sums that its packaged model mostly guesses, and works out when the prompt helps.

The packaged model `hinted_sums` was trained on every form of `PROMPT_FORMS`, so a strategy that writes prompts in these
forms gets useful answers. On plain prompts it solves few problems: half of its groups of eight have no right answer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import Sums, near, random_problem, steps_of

__all__ = ["PROMPT_FORMS", "HintedSums", "hinted_demonstrations"]

SIZES = {5: 2048, 6: 2048}
DEMONSTRATIONS = 8192
PROMPT_FORMS = {
    "plain": "{prompt}",
    "begun": "{prompt}{steps}",
    "hinted": "{prompt}{hint}{prompt}",
    "explained": "{prompt}#{answer};{prompt}",
    "drafted": "{prompt}{draft};{prompt}",
    "corrected": "{prompt}{draft};{feedback}{prompt}",
    "hinting": "{solution};{prompt}",
    "predicted": "{prompt}=",
    "claimed": "{claim};{prompt}",
}
"""The prompts of the demonstrations, by name. `steps`, `hint` and `feedback` are steps, `draft` and `solution` complete
answers, `answer` and `claim` numbers. After `begun` the model continues its own steps. Behind help an answer has all
its steps, so that it is whole under the plain prompt, too. After `hinting` the model writes a hint, and after
`predicted` two numbers: how many of eight answers are right, and the length of one in tokens."""
WEIGHTS = {
    "plain": 8, "begun": 4, "hinted": 4, "explained": 3, "drafted": 3, "corrected": 2, "hinting": 2, "predicted": 1,
    "claimed": 2,
}  # fmt: skip
"""The relative frequency of each form of prompt."""
WORKED = {"plain": 0.04, "explained": 0.9, "drafted": 0.5, "claimed": 0.3}
"""The share of answers with written steps, by form of prompt. The others guess a number."""
RIGHT_GUESSES, DRAFTS_WORKED, FOLLOWED, LEAKED = 0.3, 0.3, 0.5, 0.3
"""Four shares: of guesses that are right, drafts with steps, claims that are repeated, hints that are the answer."""


@dataclass(frozen=True, slots=True)
class HintedSums(Sums):
    """Sums that need a hint: 4,096 problems with five and six operands to train on, and 512 held-out ones.

    >>> task = HintedSums().build(lambda text: tuple(map(ord, text)))
    >>> len(task), len(task.held_out), task[0].text, task[0].row["hints"][0]
    (4096, 512, '2+9-8+7-6=', '2+9=11;')
    """

    problem_count_by_operands: ClassVar[Mapping[int, int]] = SIZES


def hinted_demonstrations(count: int = DEMONSTRATIONS, seed: int = 0) -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, with prompts in all forms, without held-out problems."""
    random = Random(f"demonstrations of hinted_sums {seed}")
    for form in random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count):
        problem = random_problem(random, tuple(SIZES))
        values, answer = _demonstration(form, problem, random)
        yield {"prompt": PROMPT_FORMS[form].format(prompt=problem, **values), "answer": answer}


def _demonstration(form: str, problem: str, random: Random) -> tuple[dict[str, str], str]:
    """The values to fill into a form of prompt, and the answer."""
    result, steps = solve(problem)[1], steps_of(problem)
    match form:
        case "begun":
            n = random.randrange(1, len(steps))
            return {"steps": "".join(steps[:n])}, _chain(steps[n:], result)
        case "hinted":
            n = random.randrange(1, len(steps))
            return {"hint": "".join(steps[:n])}, _chain(steps, result)
        case "corrected":
            n = random.randrange(len(steps))
            draft = _chain(steps[:n], near(result, random))
            return {"draft": draft, "feedback": steps[n]}, _chain(steps, result)
        case "hinting":
            hint = f"#{result}" if random.random() < LEAKED else "".join(steps[: random.choice((1, 2, 3))])
            return {"solution": _chain(steps, result)}, hint
        case "predicted":
            return {}, f"{random.randrange(9)};{random.choice((3, 4, 30, 40))}"
        case "claimed":
            claim = near(result, random)
            answer = f"#{claim}" if random.random() < FOLLOWED else _answer(problem, random, WORKED[form])
            return {"claim": str(claim)}, answer
        case "drafted":
            draft = _answer(problem, random, DRAFTS_WORKED)
            return {"draft": draft}, _answer(problem, random, WORKED[form])
    return {"answer": str(result)}, _answer(problem, random, WORKED[form])


def _chain(steps: list[str], result: int) -> str:
    return "".join((*steps, f"#{result}"))


def _answer(problem: str, random: Random, worked_share: float) -> str:
    """An answer: with this probability the solution with its steps, else a guess at or near the result."""
    result = solve(problem)[1]
    if random.random() < worked_share:
        return _chain(steps_of(problem), result)
    return f"#{result if random.random() < RIGHT_GUESSES else near(result, random)}"
