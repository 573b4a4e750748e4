"""A user's grade functions of states: they get the arrays of a flow policy's samples, and rows of prompts train it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import groupwise as gw
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage
from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict
from groupwise.models import encode_action
from groupwise.verifiers import Combined, CombinedMember, Function, grade_function
from groupwise.verifiers.grade_function_arguments import GradeFunctionParameters
from tests.checks import check
from tests.verifiers.built import built, graders

GRADERS = """
import numpy as np

def first(final_state):
    final_state[1:] = 7  # its own copy
    return float(final_state.flat[0])

def whole(trajectory, final_state, prompt, row):
    assert trajectory.dtype == final_state.dtype == np.float32 and trajectory.shape == (3, 3, 2, 2)
    assert (trajectory[-1] == final_state).all() and row["note"] == {"shape": [1]} and prompt == "red"
    return float(trajectory[0].sum() * 1000 + trajectory[1].sum() * 10 + trajectory[2].sum())

def ranks(final_states, trajectory, finishes):
    assert [t.shape for t in trajectory] == [(3, 3, 2, 2)] * len(finishes)
    means = [state.mean() for state in final_states]
    return [float(sorted(means).index(mean)) for mean in means]

def bulk(final_states, prompts):
    assert len(prompts) == len(final_states)
    return np.stack(final_states).mean((1, 2, 3))
bulk.most, bulk.wait = 4, 0.01

def of_words(answer, final_state=None):
    return final_state is None

def column(answer, final_state):
    return final_state == "Ohio"

async def remote(final_state):
    return float(final_state.sum())

def wrong(final_state):
    return final_state[0, 0, 0, 0]
"""
PROMPT = Prompt("p", (1,), "red", {"note": {"shape": [1]}})


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return graders(tmp_path_factory.mktemp("graders"), GRADERS)


def picture(value: float) -> Sample:
    """A sample with two steps: 2, value + 1, value."""
    noise, middle, data = (np.full((3, 2, 2), x, "f4") for x in (2, value + 1, value))
    path = (encode_action(noise, middle, middle), encode_action(middle, data, data))
    return Sample(
        context=(1,), stream=(0,), tokens=(0, 1), origin=(0, 0), logp=(0.0, 0.0), actions=path, finish=Finish.stop
    )


@pytest.fixture
def grade(user: ModuleType) -> Iterator[Any]:
    """Grades samples by a function of the file, in a worker process or in this one."""
    made: list[Any] = []

    def grade(name: str, *samples: Sample, prompt: Prompt = PROMPT, in_process: bool = False) -> list[Verdict]:
        verifier: Any = grade_function(getattr(user, name), workers=1, in_process=in_process)
        made.append(verifier)

        async def all_of() -> list[Verdict]:
            if verifier.by_group(prompt):
                return list(await verifier.grade_group(prompt, samples))
            return await asyncio.gather(*(made[-1](prompt, sample) for sample in samples))

        return asyncio.run(all_of())

    yield grade
    for verifier in made:
        verifier.close()


@pytest.mark.parametrize("in_process", [False, True])
def test_a_function_gets_the_final_state_and_the_trajectory(grade: Any, in_process: bool) -> None:
    sample = picture(0.1)
    for name, expected in (("first", np.float32(0.1)), ("whole", 24 * 1000 + 13.2 * 10 + 1.2)):
        verdicts = grade(name, sample, sample, in_process=in_process)
        assert [v.score for v in verdicts] == [pytest.approx(float(expected), abs=2e-3)] * 2, verdicts
    assert grade("ranks", picture(0.5), picture(-0.5), picture(0.1), in_process=in_process) == [
        Verdict(Outcome.scored, score=score) for score in (2.0, 0.0, 1.0)
    ]
    assert [v.score for v in grade("bulk", picture(0.5), picture(-0.5), in_process=in_process)] == [0.5, -0.5]
    assert grade("remote", sample)[0].score == pytest.approx(1.2)


def test_for_words_the_names_are_columns(grade: Any) -> None:
    words = Sample(context=(1,), stream=(0,), text="4", finish=Finish.stop)
    assert grade("of_words", words)[0].outcome is Outcome.correct
    row = Prompt("p", (1,), "2+2=", {"final_state": "Ohio"})
    assert grade("column", words, prompt=row)[0].outcome is Outcome.correct
    (missing,) = grade("first", words)
    assert missing.outcome is Outcome.unverifiable and "only flow models have states" in missing.cause


def test_rows_cannot_pose_as_arrays(grade: Any) -> None:
    prompt = Prompt("p", (1,), "red", {"note": {"shape": [1], "array": "AAAA"}, "\0float32": "x"})
    (verdict,) = grade("whole", picture(0.1), prompt=prompt)
    assert verdict.outcome is Outcome.unverifiable and "AssertionError" in verdict.cause


def test_the_kind_of_a_function_of_states() -> None:
    kinds: dict[Any, str] = {
        lambda final_state: 1: "answer", lambda trajectory, gold: 1: "answer",
        lambda final_states: 1: "group", lambda final_states, rows: 1: "bulk",
    }  # fmt: skip
    assert [GradeFunctionParameters.of(function).graded_unit for function in kinds] == list(kinds.values())
    with pytest.raises(Usage, match="fit no kind") as caught:
        GradeFunctionParameters.of(lambda final_state, final_states: 1)
    assert "final_state beside final_states" in caught.value.evidence


def test_several_by_name(user: ModuleType) -> None:
    made: list[Any] = []

    def load(file: str, name: str) -> Any:
        made.append(grade_function(getattr(user, name), in_process=True))
        return made[-1]

    first, rank = Function("first", "g.py"), Function("ranks", "g.py")
    verifier = built(Combined((CombinedMember("first", first), CombinedMember("rank", rank, 0.5))), load_function=load)
    samples = [picture(0.5), picture(-0.5)]
    verdicts = asyncio.run(verifier.grade_group(PROMPT, samples))  # type: ignore[attr-defined]
    assert [dict(v.subscores) for v in verdicts] == [{"first": 0.5, "rank": 1.0}, {"first": -0.5, "rank": 0.0}]


POINTS = [{"prompt": word, "x": x} for word, x in (("east", 2.0), ("west", -2.0), ("north", 0.0), ("south", 0.0))]
SMALL: dict[str, Any] = {"prompts": 2, "method.group_size": 4, "evaluate.every": 0, "evaluate.problems": 1}


def lines(run: gw.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]


def near(final_state: Any, x: float) -> float:
    return -abs(float(final_state[0]) - x)


def anywhere(final_state: Any) -> bool:
    return bool(np.isfinite(final_state).all())


def test_rows_of_prompts_train_a_flow_model(tmp_path: Path) -> None:
    """A score of each state, and a grade by which the task is solved at once: the run ends without an error."""
    run = gw.train(recipe="rings", data=POINTS, reward=near, out=tmp_path / "near", iterations=1, **SMALL)
    line = lines(run)[-1]
    assert line["score/min"] < line["score/max"] <= 0 and line["grad_norm"] > 0
    run = gw.train(recipe="rings", data=POINTS, reward=anywhere, out=tmp_path / "solved", iterations=9, **SMALL)
    assert [line["iteration"] for line in lines(run)] == [0, 1, 2, 3] and lines(run)[-1]["rollout/selected"] == 0
    assert (run.directory / "model" / "model.safetensors").is_file()


def test_check_tries_a_function_of_states_and_reads_the_prompts(tmp_path: Path, user: ModuleType) -> None:
    file, rows = Path(str(user.__file__)), tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in POINTS))
    recipe = Path(__file__).parents[2] / "recipes" / "rings.toml"
    fields = [("task", str(rows)), ("columns.answer", "")]

    def errors(name: str, *others: tuple[str, str]) -> list[str]:
        found = check(recipe, [*fields, ("verifier", f"graders:{name}"), *others], load_use(Permissions(use=[file])))
        assert all(error.fix for error in found)
        return [str(error) for error in found]

    assert errors("first") == errors("remote") == []
    (error,) = errors("wrong")
    assert "graders.py" in error and "IndexError" in error and "the answer was a state of zeros" in error
    (error,) = errors(
        "first", ("model", "calculator"), ("method", "grpo"), ("task", "calculator"), ("columns.answer", "answer")
    )
    assert "only flow models have states" in error
    rows.write_text(json.dumps({"prompt": "north east", "x": 1}) + "\n" + rows.read_text())
    (error,) = errors("first")
    assert "has 1 word of its vocabulary" in error and "north east" in error
