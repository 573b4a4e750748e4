"""`Shuffled`: each epoch has a new order, and the state is two numbers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData
from groupwise.data import Curriculum
from groupwise.models import RandomPurpose, permutation
from groupwise.rollout import Shuffled, ShuffledRows
from tests.rollout.fakes import NumberedTask


def draws_of(task: NumberedTask, sizes: list[int], seed: int = 5) -> list[tuple[int, int, int]]:
    """The index, the prompt and the number of samples of every draw."""
    state, out = Shuffled().init(task, seed), []
    for n in sizes:
        state, draws = Shuffled().draw(json.loads(json.dumps(state)), task, n, 4)
        out += [(len(out) + i + d.id, d.prompt.row["index"], d.n) for i, d in enumerate(draws)]
    return out


@pytest.mark.t(44)
@given(st.integers(1, 12), st.lists(st.integers(0, 9), max_size=6))
def test_every_epoch_contains_each_prompt_once(count: int, sizes: list[int]) -> None:
    draws = draws_of(NumberedTask(count), sizes)
    assert [i for i, _, _ in draws] == list(range(sum(sizes)))
    assert all(n == 4 for _, _, n in draws)
    for first in range(0, len(draws), count):
        epoch = [index for _, index, _ in draws[first : first + count]]
        assert len(set(epoch)) == len(epoch)


def test_the_order_depends_on_seed_and_epoch_and_not_on_the_sizes_of_the_calls() -> None:
    one = draws_of(NumberedTask(30), [60])
    assert draws_of(NumberedTask(30), [1, 0, 44, 15]) == one
    orders = [
        [index for _, index, _ in draws] for draws in (one[:30], one[30:], draws_of(NumberedTask(30), [30], seed=6))
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(30)) for order in orders)


def test_draw_returns_a_new_state_and_leaves_the_old_unchanged() -> None:
    task, curriculum = NumberedTask(3), Shuffled()
    state = curriculum.init(task, 1)
    after, _ = curriculum.draw(state, task, 2, 4)
    assert (state["drawn_count"], after["drawn_count"]) == (0, 2)
    assert curriculum.observe(after, []) == after
    assert isinstance(curriculum, Curriculum)


def test_a_task_without_prompts_is_an_error() -> None:
    with pytest.raises(BadData, match="no prompts"):
        Shuffled().draw(Shuffled().init(NumberedTask(0), 0), NumberedTask(0), 1, 4)


def test_rows_have_an_order_of_their_own() -> None:
    """Of seed 5, pass by pass. Prompts have another one under the same seed."""
    task, rows = NumberedTask(30), ShuffledRows()
    state, draws = rows.draw(rows.init(task, 5), task, 50, 1)
    first, second = (permutation((5, RandomPurpose.DEMONSTRATE), 0, epoch, 30).tolist() for epoch in (0, 1))
    assert [draw.prompt.row["index"] for draw in draws] == [*first, *second[:20]]
    assert first != [index for _, index, _ in draws_of(task, [30])]
    _, following = rows.draw(state, task, 10, 1)
    assert [draw.prompt.row["index"] for draw in following] == second[20:]
