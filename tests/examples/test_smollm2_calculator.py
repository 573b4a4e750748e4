"""The agent of examples/smollm2_calculator.py: its problems, its calculator, and its rewards."""

import asyncio
import re
import runpy
from typing import Any

import pytest

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions, load_use
from tests.docs.test_pages import HOME
from tests.examples.test_gallery import Client, reply

FILE = HOME / "examples" / "smollm2_calculator.py"
EXAMPLE = runpy.run_path(str(FILE))
QUESTION = "Tom has 35 jars with 91 pens each, and 299 more pens. How many pens does Tom have?"


@pytest.mark.parametrize(
    ("turns", "results", "reward"),
    [
        (("35 * 91 + 299 ", "The answer is 3484."), ["3484"], True),
        (("35 * 91 ", "The answer is 3185."), ["3185"], False),
        (("35 * 91 + 299 ", "The answer is 3,484"), ["3484"], True),
        (("299 - 35 * 91 ", "3484"), ["-2886"], True),
        (("The answer is 3484",), [], True),
        (("35(91) + 299",), [], False),
        (("",), [], False),
    ],
)
def test_a_calculation_is_answered_by_the_calculator(turns: tuple[str, ...], results: list[str], reward: bool) -> None:
    remaining, shown, roles = list(turns), list[str](), set[tuple[str, ...]]()

    async def create(model: str, messages: list[dict[str, str]], **limits: Any) -> Any:
        shown.extend([messages[-1]["content"]] if len(remaining) < len(turns) else [])
        roles.add(tuple(message["role"] for message in messages))
        return reply({"choices": [{"message": {"content": remaining.pop(0)}}]})

    run = EXAMPLE["agent"]({"prompt": QUESTION, "answer": 3484}, Client(create))
    assert asyncio.run(run) is reward and not remaining and shown == results
    assert all(one[::2] == ("user",) * len(one[::2]) and {*one[1::2]} == {"assistant"} for one in roles)


def test_the_answer_of_a_problem_is_that_of_its_numbers() -> None:
    task = EXAMPLE["Boxes"]().build(lambda text: tuple(map(ord, text)))
    prompts = [*map(task.__getitem__, range(len(task))), *task.held_out]
    assert (len(task), len(task.held_out), len({prompt.text for prompt in prompts})) == (576, 64, 640)
    for prompt in prompts:
        a, b, c = map(int, re.findall(r"\d+", prompt.text))
        assert prompt.row["answer"] == a * b + c == EXAMPLE["calculate"](f"{a} * {b} + {c}")
    assert [EXAMPLE["calculate"](text) for text in ("7 - 3 * 2 - 1", "2 + 3 * 4 * 5 - 6")] == [0, 56]


def test_a_step_of_the_recipe_has_all_samples_of_an_iteration() -> None:
    """Steps of a few samples made it unstable: most of them have no right answer, so no gradient."""
    recipe = read_recipe(FILE.with_suffix(".toml"), (), load_use(Permissions(use=[FILE])))
    assert recipe.agent and recipe.agent.file == "smollm2_calculator:agent"
    assert recipe.method.minibatches == 1 and recipe.prompts * recipe.method.group_size == recipe.evaluate.problems == 64
