"""Generated problems: the same in every run, judged by the package's scorers, none of which executes an answer."""

import asyncio
import sys
from types import ModuleType

import pytest

from groupwise.core import MissingRequirement, Usage
from groupwise.data import Prompt, Sample
from groupwise.tasks import ReasoningGym, RowsTask, named_task
from groupwise.verifiers import Exact, usual_verifier
from groupwise.verifiers.gym.reasoning_gym import runs_answers
from tests.verifiers.built import built

pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


def encode(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def gym_task(name: str) -> RowsTask:
    """Few problems: generating is what takes the time."""
    task = ReasoningGym(name, max_problems=200).build(encode)
    assert isinstance(task, RowsTask)
    return task


@pytest.fixture(scope="module")
def legs() -> RowsTask:
    return gym_task("leg_counting")


def verdicts_on(task: RowsTask, *answers: tuple[Prompt, str]) -> list[tuple[str, float]]:
    verifier = built(usual_verifier(ReasoningGym("x")), task, deadline=60.0)

    async def ask() -> list[tuple[str, float]]:
        samples = [(p, Sample(context=p.token_ids, stream=(0,), text=text)) for p, text in answers]
        verdicts = await asyncio.gather(*(verifier(*pair) for pair in samples))
        return [(v.outcome.name, v.value) for v in verdicts]

    return asyncio.run(ask())


def test_the_problems_are_the_same_in_every_run(legs: RowsTask) -> None:
    again = gym_task("leg_counting")
    assert again.training == legs.training and again.held_out == legs.held_out
    other = ReasoningGym("leg_counting", seed=3, max_problems=200).build(encode)
    assert other[0].text != legs[0].text and other[0].row["entry"]["seed"] == 3
    assert len({" ".join(p.text.split()) for p in (*legs.training, *legs.held_out)}) == legs.source_stats[0].row_count
    assert 0.05 < len(legs.held_out) / legs.source_stats[0].row_count < 0.15


def test_the_scorer_of_the_generator_judges(legs: RowsTask) -> None:
    first, second = legs[0], legs.held_out[0]
    right, other = first.row["answer"], second.row["answer"]
    outcomes = verdicts_on(
        legs,
        (first, right),
        (second, f"<think>hm</think> <answer> {other} </answer> done"),
        (first, f"<answer>{right}</answer><answer>no</answer>"),
        (first, ""),
    )
    assert outcomes == [("correct", 1.0), ("correct", 1.0), ("wrong", 0.0), ("wrong", 0.0)]


def test_a_score_between_is_one_and_gold_answers_are_right() -> None:
    task = gym_task("maze")
    assert verdicts_on(task, (task[0], task[0].row["answer"])) == [("correct", 1.0)]
    task = gym_task("letter_jumble")
    words = task[0].row["answer"].split()
    ((outcome, value),) = verdicts_on(task, (task[0], " ".join(["zzz", *words[1:]])))
    assert outcome == "wrong" and 0 < value < 1


def test_other_verifiers_see_the_answer(legs: RowsTask) -> None:
    assert built("exact", legs) is Exact()
    with pytest.raises(Usage, match="grades problems of the task reasoning_gym only"):
        built("gym_score", named_task("calculator").build(encode))


RUNNING = ["spiral_matrix", "string_insertion", "n_queens", "binary_matrix", "countdown", "puzzle24"]
RUNNING += ["polynomial_multiplication", "simple_integration", "intermediate_integration"]


@pytest.mark.parametrize("name", RUNNING)
def test_a_scorer_that_would_run_answers_is_refused(name: str) -> None:
    from reasoning_gym.factory import DATASETS

    assert runs_answers(DATASETS[name][0]) in ("eval", "parse_expr")


def test_a_scorer_with_a_parser_in_its_file_is_accepted() -> None:
    from reasoning_gym.factory import DATASETS

    quiet = ("leg_counting", "basic_arithmetic", "propositional_logic", "maze", "sudoku")
    assert [name for name in quiet if runs_answers(DATASETS[name][0])] == []


def test_the_refusal_has_a_fix() -> None:
    task = gym_task("spiral_matrix")
    with pytest.raises(Usage, match="would run answers as Python") as caught:
        built("gym_score", task)
    assert "calls eval" in caught.value.evidence and "--verifier exact" in caught.value.fix


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(Usage) as caught:
        gym_task("leg_count")
    assert "leg_counting" in caught.value.fix


def test_a_missing_package_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "reasoning_gym"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    assert not isinstance(sys.modules["reasoning_gym"], ModuleType)
    with pytest.raises(MissingRequirement) as caught:
        gym_task("leg_counting")
    assert caught.value.fix == "pip install 'groupwise[reasoning-gym]'"
