"""The task `tiny_countdown`, against all expressions of its numbers."""

import re
from collections import Counter
from hashlib import sha256
from itertools import permutations, product

import pytest

from groupwise.data import Outcome, Prompt, Task, Verdict
from groupwise.tasks import named_task
from groupwise.tasks.tiny_countdown import countdown_demonstrations
from groupwise.verifiers import usual_verifier
from tests.verifiers.built import built, verdict_of

TASK = named_task("tiny_countdown").build(lambda text: tuple(map(ord, text)))
VERIFIER = built(usual_verifier(named_task("tiny_countdown")), TASK)


def grade(prompt: Prompt, text: str) -> Verdict:
    return verdict_of(VERIFIER, text, prompt)


def parsed(problem: str) -> tuple[int, list[int]]:
    target, numbers = problem.split("=")
    return int(target), [int(n) for n in numbers.split(";")[:-1]]


def in_order(problem: str) -> str:
    """The problem with its numbers sorted: the same problem in any order."""
    target, numbers = parsed(problem)
    return f"{target}={''.join(f'{n};' for n in sorted(numbers))}"


def expressions(numbers: list[int]) -> list[str]:
    return [
        "".join(f"{n}{s}" for n, s in zip(order, (*signs, "")))
        for order in permutations(numbers)
        for signs in product("+-*", repeat=len(numbers) - 1)
    ]


def test_problems_differ_and_are_split_by_their_hash() -> None:
    training = [TASK[i] for i in range(len(TASK))]
    problems = [p.text for p in (*training, *TASK.held_out)]
    assert isinstance(TASK, Task) and len(training) == 2048 and len(TASK.held_out) == 256
    assert len(set(problems)) == len(problems)
    for prompts, held in ((training, False), (TASK.held_out, True)):
        assert all((int(sha256(in_order(p.text).encode()).hexdigest()[:16], 16) % 10 == 0) is held for p in prompts)
    assert not {in_order(p.text) for p in training} & {in_order(p.text) for p in TASK.held_out}
    # Published results depend on the order.
    assert sha256("".join(problems).encode()).hexdigest()[:12] == "7a0da6acfd0e"


def test_each_problem_can_be_solved_and_the_verifier_accepts_all_its_solutions() -> None:
    for prompt in TASK.held_out[:24]:
        target, numbers = parsed(prompt.text)
        assert prompt.row["answer"] == {"numbers": numbers, "target": target}
        assert len(numbers) == 3 and all(1 <= n <= 9 for n in numbers) and 0 <= target <= 60
        values = {text: eval(text) for text in expressions(numbers)}
        solutions = [text for text, value in values.items() if value == target]
        assert solutions
        assert all(grade(prompt, text).outcome is Outcome.correct for text in solutions[:3])
        wrong = next(text for text, value in values.items() if value != target)
        assert grade(prompt, wrong).outcome is Outcome.wrong


@pytest.mark.parametrize("text", ["", "7+", "(1", "x", "7**2", "13"])
def test_other_answers_are_not_right(text: str) -> None:
    prompt = Prompt("p", (), "13=7;3;2;", {"answer": {"numbers": [7, 3, 2], "target": 13}})
    assert grade(prompt, "7+3*2").outcome is Outcome.correct
    assert grade(prompt, text).outcome is not Outcome.correct


def test_demonstrations_use_each_number_once_and_a_few_are_right() -> None:
    shown = list(countdown_demonstrations())
    assert shown == list(countdown_demonstrations()) and len(shown) == 4096
    held_out = {in_order(p.text) for p in TASK.held_out}
    right, signs = 0, Counter[str]()
    for row in shown:
        assert in_order(row["prompt"]) not in held_out
        target, numbers = parsed(row["prompt"])
        assert re.fullmatch(r"\d([-+*]\d){2}", row["answer"])
        assert sorted(map(int, re.findall(r"\d", row["answer"]))) == sorted(numbers)
        right += eval(row["answer"]) == target
        signs.update(re.findall(r"[-+*]", row["answer"]))
    assert 0.1 < right / len(shown) < 0.25 and len(signs) == 3
