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
    ("turn", "reward"),
    [
        ("35 * 91 + 299 ", True),
        ("299 + 91 * 35", True),
        ("Tom has 299 + 35 * 91 ", True),
        ("35 * 91 ", False),
        ("299 - 35 * 91 ", False),
        ("The answer is 3484", False),
        ("35(91) + 299", False),
        ("", False),
    ],
)
def test_the_reward_is_that_of_the_calculation(turn: str, reward: bool) -> None:
    requests = list[dict[str, Any]]()

    async def create(**request: Any) -> Any:
        requests.append(request)
        return reply({"choices": [{"message": {"content": turn}}]})

    assert asyncio.run(EXAMPLE["agent"]({"prompt": QUESTION, "answer": 3484}, Client(create))) is reward
    ((*examples, problem),) = (request["messages"] for request in requests)
    assert [message["role"] for message in examples] == ["user", "assistant"] * 2
    assert problem == {"role": "user", "content": QUESTION}


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
    assert (recipe.method.minibatches, recipe.prompts, recipe.method.group_size) == (1, 8, 8)
    assert recipe.evaluate.problems == 64
