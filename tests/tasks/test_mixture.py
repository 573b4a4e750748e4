"""Mixtures: shares of an epoch, order and resume, disjoint splits, and a verifier per task."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData, Usage
from groupwise.data import Outcome, Prompt, Sample, Task, Verdict
from groupwise.rollout import Shuffled
from groupwise.tasks import Calculator, MixtureVerifier, RowsTask, SourceStats, TaskMixture
from groupwise.tasks.task_mixture import task_index
from tests.rollout.fakes import judged_by


def problems(name: str, n: int, held: int = 0) -> RowsTask:
    every = tuple(Prompt(f"{name}/{i}", (i,), f"{name} {i}", {"answer": i}) for i in range(1, n + held + 1))
    facts = SourceStats(source=name, sha256=name, row_count=n + held, training_count=n, held_out_count=held)
    return RowsTask(every[:n], every[n:], (facts,))


def counts(task: Task) -> list[Counter[str]]:
    """How often each problem of each task comes in an epoch."""
    counters: dict[int, Counter[str]] = {}
    for i in range(len(task)):
        counters.setdefault(task_index(task[i]), Counter())[task[i].id] += 1
    return [counters[i] for i in sorted(counters)]


def test_shares_are_as_weights() -> None:
    task = TaskMixture((problems("a", 100), problems("b", 30), problems("c", 10)), (2.0, 1.0, 1.0))
    assert isinstance(task, Task) and len(task) == 200
    assert [c.total() for c in counts(task)] == [100, 50, 50]
    with pytest.raises(IndexError):
        task[200]
    with pytest.raises(IndexError):
        task[-1]


SIZES = st.lists(st.tuples(st.integers(1, 12), st.floats(0.1, 8)), min_size=1, max_size=4)


@given(SIZES)
def test_every_problem_occurs_and_counts_differ_by_one_at_most(parts: list[tuple[int, float]]) -> None:
    task = TaskMixture(tuple(problems(f"t{i}", n) for i, (n, _) in enumerate(parts)), tuple(w for _, w in parts))
    counters = counts(task)
    assert [len(c) for c in counters] == [n for n, _ in parts]
    assert all(max(c.values()) - min(c.values()) <= 1 for c in counters)
    assert min(max(c.values()) for c in counters) == 1
    whole = sum(w for _, w in parts)
    assert all(
        abs(c.total() / len(task) - w / whole) <= 2 / len(task) * len(parts) for c, (_, w) in zip(counters, parts)
    )


@pytest.mark.t(44)
@pytest.mark.parametrize("cut", [1, 3, 7, 25])
def test_order_and_resume_depend_on_the_seed_only(cut: int) -> None:
    def task() -> TaskMixture:
        return TaskMixture((problems("a", 10), problems("b", 4)), (1.0, 0.8))

    def drawn(n: int, seed: int = 5) -> list[str]:
        state, ids = Shuffled().init(task(), seed), []
        for begin, end in pairwise([*range(0, n, cut), n]):
            state, draws = Shuffled().draw(dict(state), task(), end - begin, 2)  # all that a checkpoint remembers
            ids += [d.prompt.id for d in draws]
        return ids

    ids, epoch = drawn(54), len(task())
    assert ids == drawn(54)[:54] and drawn(20) == ids[:20] and drawn(54, seed=6) != ids
    for e in range(54 // epoch):
        assert Counter(ids[e * epoch : (e + 1) * epoch]) == sum(counts(task()), Counter())


# What is held out


def test_held_out_problems_of_all_tasks_take_turns() -> None:
    task = TaskMixture((problems("a", 5, held=3), problems("b", 5, held=1)), (1.0, 1.0))
    assert [p.id for p in task.held_out] == ["1:a/6", "2:b/6", "1:a/7", "1:a/8"]
    assert [task_index(p) for p in task.held_out] == [0, 1, 0, 0]
    assert len(task.training) == 10 and [f.source for f in task.source_stats] == ["a", "b"]


def test_another_task_may_be_held_out_instead() -> None:
    held = problems("h", 2, held=1).entirely_held_out
    task = TaskMixture((problems("a", 5, held=3),), (1.0,), (held,))
    assert [(p.id, task_index(p)) for p in task.held_out] == [("2:h/1", 1), ("2:h/2", 1), ("2:h/3", 1)]
    assert [(f.training_count, f.held_out_count) for f in task.source_stats] == [(5, 3), (0, 3)]


def test_a_problem_on_both_sides_is_refused() -> None:
    with pytest.raises(BadData, match="2 problems to train on are held out too") as caught:
        TaskMixture((problems("a", 5),), (1.0,), (problems("a", 2).entirely_held_out,))
    assert "1:a/1 and 2:a/1" in caught.value.evidence
    with pytest.raises(BadData, match="2 problems to train on are held out too"):
        TaskMixture((problems("a", 5), problems("a", 2, held=2)), (1.0, 1.0))


def test_a_task_without_a_list_of_problems_can_be_mixed_in() -> None:
    task = TaskMixture((Calculator().build(lambda text: tuple(map(ord, text))), problems("a", 2)), (1.0, 1.0))
    assert len(task) == 2 * 16384 and task[16384].id == "2:a/1" and task[0].text == "7+2+4+2="


@pytest.mark.parametrize("weights", [(0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_a_weight_is_above_0(weights: tuple[float, ...]) -> None:
    with pytest.raises(Usage, match="a weight above 0"):
        TaskMixture((problems("a", 1), problems("b", 1)), weights)


def test_each_task_has_its_verifier() -> None:
    def saying(outcome: Outcome):
        async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
            return Verdict(outcome)

        return judged_by(verifier)

    task = TaskMixture((problems("a", 1), problems("b", 1)), (1.0, 1.0), (problems("h", 1).entirely_held_out,))
    each = MixtureVerifier((saying(Outcome.correct), saying(Outcome.wrong), saying(Outcome.malformed)))
    sample = Sample(context=(1,), stream=(0,))
    counters = [asyncio.run(each(p, sample)).outcome.name for p in (task[0], task[1], task.held_out[0])]
    assert counters == ["correct", "wrong", "malformed"]
