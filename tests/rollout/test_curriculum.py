"""Epochs in orders of their own, and a state of two numbers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import BadData, Curriculum
from groupwise.rollout import Shuffled
from tests.rollout.fakes import Listed


def drawn(task: Listed, sizes: list[int], seed: int = 5) -> list[tuple[int, int, int]]:
    """(id, prompt, samples) of every draw."""
    state, out = Shuffled().init(task, seed), []
    for n in sizes:
        state, draws = Shuffled().draw(json.loads(json.dumps(state)), task, n, 4)
        out += [(d.id, d.prompt.given["index"], d.n) for d in draws]
    return out


@pytest.mark.t(44)
@given(st.integers(1, 12), st.lists(st.integers(0, 9), max_size=6))
def test_every_prompt_of_an_epoch_comes_once_before_the_next(count: int, sizes: list[int]) -> None:
    draws = drawn(Listed(count), sizes)
    assert [i for i, _, _ in draws] == list(range(sum(sizes)))
    assert all(n == 4 for _, _, n in draws)
    for first in range(0, len(draws), count):
        epoch = [index for _, index, _ in draws[first : first + count]]
        assert len(set(epoch)) == len(epoch)


def test_the_order_depends_on_seed_and_epoch_and_not_on_the_cut() -> None:
    one = drawn(Listed(30), [60])
    assert drawn(Listed(30), [1, 0, 44, 15]) == one
    orders = [[index for _, index, _ in draws] for draws in (one[:30], one[30:], drawn(Listed(30), [30], seed=6))]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(30)) for order in orders)


def test_drawing_changes_no_state_but_returns_one() -> None:
    task, curriculum = Listed(3), Shuffled()
    state = curriculum.init(task, 1)
    after, _ = curriculum.draw(state, task, 2, 4)
    assert (state["drawn"], after["drawn"]) == (0, 2)
    assert curriculum.observe(after, []) == after
    assert isinstance(curriculum, Curriculum)


def test_a_task_without_prompts_is_refused() -> None:
    with pytest.raises(BadData, match="no prompts"):
        Shuffled().draw(Shuffled().init(Listed(0), 0), Listed(0), 1, 4)
