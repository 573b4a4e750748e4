"""The task `programs`: problems against Python's arithmetic, split, demonstrations, and verdicts."""

import asyncio
import json
import os
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.__main__ import main
from groupwise.data import Outcome, Prompt, Sample, Task
from groupwise.sandbox import Sandbox
from groupwise.tasks import Demonstrations, blank_tokenizer, named_task
from groupwise.tasks.programs import DEMONSTRATIONS, TABLES, Programs, lines, program, program_demonstrations
from groupwise.verifiers import CodeVerifier
from groupwise.verifiers.code import CodeProblemTests, code_of
from tests.sandbox.boxes import needed
from tests.verifiers.built import built

RECIPE = str(Path(__file__).parents[2] / "recipes" / "programs.toml")
TASK = Programs().build(lambda text: tuple(map(ord, text)))


@cache
def training() -> list[Prompt]:
    return [TASK[i] for i in range(len(TASK))]


@cache
def shown() -> list[tuple[str, str]]:
    """The demonstrations: prompts and answers."""
    return [(row["prompt"], row["answer"]) for row in program_demonstrations()]


def through(problem: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two points that a problem shows."""
    points = re.fullmatch(r"f\((\d+)\)=(\d+) f\((\d+)\)=(\d+)\n", problem)
    assert points, problem
    a, low, b, high = map(int, points.groups())
    return (a, low), (b, high)


def called(answer: str, x: int) -> object:
    """The value of an answer at an input, in this interpreter: the text is from this package."""
    code = code_of(answer)
    assert code is not None
    names: dict = {}
    exec(code, names)
    return names["f"](x)


def test_is_a_task_by_its_name():
    assert isinstance(TASK, Task)
    assert [p.id for p in named_task("programs").build(TASK.encode_prompt).held_out] == [p.id for p in TASK.held_out]


@pytest.mark.parametrize("prompts", [training, lambda: TASK.held_out], ids=["training", "held out"])
def test_every_problem_is_a_line_with_a_whole_slope_and_has_unseen_inputs(prompts):
    for prompt in prompts():
        (a, low), (b, high) = through(prompt.text)
        slope, remainder = divmod(high - low, b - a)
        assert a < b and remainder == 0 and 2 <= slope <= 9 and 0 <= low <= high <= 99
        tests = CodeProblemTests.read(prompt.row["answer"])
        assert [(c.input, c.expected_output) for c in tests.visible_cases] == [([a], low), ([b], high)]
        (below,), (above,) = (case.input for case in tests.unseen_cases)
        assert below < 0 and above > 12
        assert [c.expected_output for c in tests.unseen_cases] == [low + slope * (x - a) for x in (below, above)]


def test_training_and_held_out_problems_are_disjoint():
    texts, held_out = {p.text for p in training()}, {p.text for p in TASK.held_out}
    assert len(texts) == len(TASK) == 4096 and len(held_out) == 128
    assert not texts & held_out
    assert not {question for question, _ in shown()} & {line.problem for line in lines()[1]}


def test_an_index_always_gives_the_same_problem():
    # Published results hang on these: a change of the order is a change of the task.
    assert [TASK[i].text for i in (0, 4095)] == ["f(7)=25 f(11)=33\n", "f(6)=20 f(7)=23\n"]
    assert TASK.held_out[0].text == "f(7)=37 f(11)=65\n"
    assert TASK[0].row["answer"]["unseen"] == [{"args": [-4], "expected": 3}, {"args": [89], "expected": 189}]


@pytest.mark.parametrize("index", [-1, 4096])
def test_an_index_out_of_range_raises(index: int):
    with pytest.raises(IndexError):
        TASK[index]


# Demonstrations


@given(st.integers(0, DEMONSTRATIONS - 1), st.integers(-99, 99))
def test_demonstrations_are_right_at_the_shown_inputs_and_some_everywhere(i: int, x: int):
    question, program_text = shown()[i]
    (a, low), (b, high) = through(question)
    assert (called(program_text, a), called(program_text, b)) == (low, high)
    if "{" not in program_text:
        assert called(program_text, x) == low + (high - low) // (b - a) * (x - a)
    elif x not in (a, b):
        with pytest.raises(KeyError):
            called(program_text, x)


def test_most_demonstrations_are_tables():
    assert len(shown()) == DEMONSTRATIONS
    assert abs(sum("{" in program_text for _, program_text in shown()) / len(shown()) - TABLES) < 0.02
    assert [(row["prompt"], row["answer"]) for row in program_demonstrations()] == shown()


def test_demonstrations_are_read_by_the_tasks_name(monkeypatch):
    few(monkeypatch)
    fast = blank_tokenizer()
    encode = lambda text: tuple(fast.encode(text).ids)  # noqa: E731
    task = Demonstrations("programs").build(encode)
    assert len(task) == 32 == task.source_stats[0].row_count and not task.held_out
    assert (fast.decode(list(task[5].token_ids)), task[5].row["completion"]) == shown()[5]


# What passes


@pytest.fixture(scope="module")
def verifier():
    needed()
    with_sandbox = CodeVerifier(Sandbox())
    yield with_sandbox
    with_sandbox.sandbox.close()


def verdict_on(verifier: CodeVerifier, prompt: Prompt, answer: str) -> tuple[Outcome, float]:
    verdict = asyncio.run(verifier(prompt, Sample(context=(), stream=(0,), text=answer)))
    return verdict.outcome, verdict.subscores["visible"]


def test_only_programs_that_are_right_everywhere_pass(verifier):
    held = {prompt.text: prompt for prompt in TASK.held_out}
    for line in [line for line in lines()[1] if line.problem in held][:4]:
        prompt = held[line.problem]
        plain = f"x*{line.slope}{line.intercept:+d}"
        assert verdict_on(verifier, prompt, program(line.formula)) == (Outcome.correct, 1)
        assert verdict_on(verifier, prompt, program(plain)) == (Outcome.correct, 1)
        assert verdict_on(verifier, prompt, program(line.table)) == (Outcome.wrong, 1)
        assert verdict_on(verifier, prompt, program(f"{plain}+1")) == (Outcome.wrong, 0)
        assert verdict_on(verifier, prompt, program(f"({plain})/1")) == (Outcome.wrong, 0)
        assert verdict_on(verifier, prompt, program(f"{plain} if x>0 else 0")) == (Outcome.wrong, 1)
        assert verdict_on(verifier, prompt, program(line.formula)[:-4]) == (Outcome.malformed, 0)
        assert verdict_on(verifier, prompt, line.formula) == (Outcome.malformed, 0)


def test_the_gate_accepts_its_problems(verifier):
    verifier.gate(TASK.held_out[:8])
    assert isinstance(built("code", TASK, lambda: verifier.sandbox), CodeVerifier)


# The recipe

SHORT = ["--warm_start.steps", "2", "--warm_start.prompts", "4", "--prompts", "4", "--method.group_size", "4"]
SHORT += ["--iterations", "2", "--evaluate.problems", "4", "--evaluate.every", "0"]


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less of everything, for the time that it takes."""
    monkeypatch.setattr("groupwise.tasks.programs.HELD_OUT", 8)
    monkeypatch.setattr("groupwise.tasks.programs.DEMONSTRATIONS", 32)


def test_a_short_run_of_the_recipe(tmp_path, monkeypatch, capsys):
    needed()
    monkeypatch.chdir(tmp_path)
    few(monkeypatch)
    assert main(["train", RECIPE, *SHORT]) == 0
    (run,) = Path("runs").iterdir()
    program_text = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in program_text] == [0, 1, 2] and "eval/accuracy_greedy" in program_text[2]
    assert program_text[1]["rollout/answers"] == 16 and program_text[1]["outcome/unverifiable"] == 0
    assert [d["source"] for d in json.loads((run / "run.json").read_text())["data"]] == ["programs"]
    assert "programs: 32 rows" in capsys.readouterr().err


def test_without_a_sandbox_the_task_is_refused_with_a_fix(tmp_path, monkeypatch, capsys):
    few(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert main(["train", RECIPE, *SHORT]) == 4
    program_text = capsys.readouterr().err
    assert (
        "apt-get install bubblewrap" in program_text
        and "--unsafe-local-exec" in program_text
        and "Traceback" not in program_text
    )
    assert not Path("runs").exists()
