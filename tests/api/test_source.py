"""A reward function becomes a file only if it needs nothing outside itself."""

import functools
import math
import re as regex
from collections import Counter

import pytest

from groupwise.api.function_source import file_source

LIMIT = 3


def plain(prompt, answer, gold):
    return len(set(answer)) / 26


def top(prompt, answer, gold):  # the name of a module's scope in symtable
    return len(set(answer)) / 26


def with_modules(prompt, answer, gold):
    return math.sqrt(len(regex.findall(r"\d", answer))) + max(Counter(answer).values())


async def waiting(prompt, answer, gold):
    return [digit for digit in answer if digit.isdigit()] == list(gold)


def with_variable(prompt, answer, gold):
    return len(answer) > LIMIT


def with_neighbour(prompt, answer, gold):
    return plain(prompt, answer, gold)


def with_default(prompt, answer, gold, limit=LIMIT):
    return len(answer) > limit


def with_annotation(prompt: "str", answer: pytest.Item, gold):
    return True


def counting(prompt, answer, gold):
    global LIMIT
    LIMIT = 4
    return True


@functools.cache
def decorated(prompt, answer, gold):
    return True


class Grader:
    def __call__(self, prompt, answer, gold):
        return True

    def method(self, prompt, answer, gold):
        return True


def closure():
    bound = LIMIT

    def inner(prompt, answer, gold):
        return len(answer) > bound

    return inner


@pytest.mark.parametrize("function", [plain, top, with_modules, waiting])
def test_the_file_of_a_function_defines_an_equal_function(function) -> None:
    source = file_source(function)
    assert source is not None
    space: dict = {}
    exec(compile(source, "reward.py", "exec"), space)
    if function is not waiting:
        assert space[function.__name__]("p", "12+34", "46") == function("p", "12+34", "46")


def test_the_imports_of_a_function_come_with_it() -> None:
    source = file_source(with_modules)
    assert source is not None
    assert source.startswith("from collections import Counter as Counter\nimport math as math\nimport re as regex\n")


@pytest.mark.parametrize(
    "function",
    [with_variable, with_neighbour, with_default, counting, decorated, Grader(), Grader().method, closure(), len,
     lambda prompt, answer, gold: True],
)  # fmt: skip
def test_a_function_that_needs_its_program_has_no_file(function) -> None:
    assert file_source(function) is None


def test_an_annotation_from_an_installed_package_is_imported() -> None:
    assert "from _pytest.nodes import Item as pytest" not in (file_source(with_annotation) or "")
    assert (file_source(with_annotation) or "").startswith("import pytest as pytest\n")
