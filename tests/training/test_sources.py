"""Tests of tasks, templates, verifiers and mixtures of a recipe, and of the data that a run records."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.checks.check_inputs import check_inputs
from groupwise.config.diff import diff
from groupwise.config.recipe import Columns, ExtraTask, Recipe
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.task_sources import sources
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import BadData, Usage
from groupwise.data import Draw, Rollout, Sampler, Sampling
from groupwise.methods import grpo
from groupwise.models import find_model, read_tokenizer
from groupwise.rollout import Independent, Turns
from groupwise.tasks import MixtureVerifier, PublishedSet, RowsTask, TaskMixture
from groupwise.tasks.task_mixture import task_index
from groupwise.training import build_tasks as sources_module
from groupwise.training.build_environment import frame_of, tool_schemas
from groupwise.training.build_tasks import prompt_template, task_of, templates, verdict_wait, verifier_of
from groupwise.verifiers import Code, CodeVerifier, Countdown, Exact, Function, LastNumber
from tests.models.test_templates import CHATML, trained
from tests.tasks.published import gsm8k

SMALL = ["--prompts", "2", "--iterations", "2", "--method.group_size", "2", "--method.minibatches", "1"]
SMALL += ["--sampling.max_tokens", "8", "--evaluate.problems", "2", "--save.every", "1"]
CALCULATOR = read_tokenizer(find_model("calculator"))


@pytest.fixture(autouse=True)
def here(home: Path) -> None:
    """Four files of problems in the working directory."""
    rows("a.jsonl", [{"prompt": f"{i}+2=", "answer": i + 2} for i in range(1, 21)])
    rows("b.jsonl", [{"q": f"{i}*3=", "x": {"gold": str(i * 3)}} for i in range(1, 5)])
    rows("c.jsonl", [{"prompt": f"{i}-1=", "answer": i - 1} for i in range(1, 5)])
    rows("gsm.jsonl", gsm8k())


def rows(name: str, every: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in every))


def recipe(**fields: Any) -> Recipe:
    return Recipe(**{"method": grpo(), "task": "a.jsonl", "verifier": Exact(), **fields})


B = ExtraTask(task="b.jsonl", weight=2.0, columns=Columns(prompt="q", answer="x.gold"), verifier=LastNumber())
COUNTDOWN, GSM8K = PublishedSet("countdown", "x.jsonl"), PublishedSet("gsm8k", "gsm.jsonl")
AIME = PublishedSet("aime24", "e.jsonl")


# Tasks and verifiers


def test_a_single_task_is_not_wrapped() -> None:
    assert isinstance(task_of(recipe(), templates(recipe(), CALCULATOR)), RowsTask)
    assert verifier_of(recipe(), task_of(recipe(), templates(recipe(), CALCULATOR)), UserCode()) == Exact()


def test_a_mixture_has_a_verifier_per_task() -> None:
    mixed = recipe(extra_tasks=(B,), held_out="c.jsonl")
    task = task_of(mixed, templates(mixed, CALCULATOR))
    assert isinstance(task, TaskMixture)
    assert [p.text for p in task.held_out] == ["1-1=", "2-1=", "3-1=", "4-1="]
    assert {task_index(p) for p in task.training} == {0, 1} and len(task) > len(task.training)
    assert verifier_of(mixed, task, UserCode()) == MixtureVerifier((Exact(), LastNumber(), Exact()))


def test_all_rows_are_trained_on_beside_held_out_data() -> None:
    plain, beside = recipe(), recipe(held_out="c.jsonl")
    half, whole = (task_of(one, templates(one, CALCULATOR)) for one in (plain, beside))
    assert isinstance(half, RowsTask) and isinstance(whole, TaskMixture) and half.held_out
    every = {p.text for p in (*half.training, *half.held_out)}
    assert {p.text for p in whole.training} == every and not every & {p.text for p in whole.held_out}
    assert whole.source_stats[0].training_count == len(every) and whole.source_stats[0].held_out_count == 0


def test_a_named_task_has_a_default_verifier_and_template() -> None:
    one, two = sources(recipe(task=COUNTDOWN, verifier=None, extra_tasks=(ExtraTask(task=GSM8K),)))
    assert (one.verifier, one.template) == (Countdown(), "r1")
    assert (two.verifier, two.template) == (LastNumber(), "no")
    one, two = sources(recipe(task=COUNTDOWN, template="no", extra_tasks=(ExtraTask(task="a.jsonl"),)))
    assert (one.verifier, one.template, two.verifier, two.template) == (Exact(), "no", Exact(), "no")


def test_a_named_task_has_fixed_columns() -> None:
    with pytest.raises(Usage, match=r"the columns of the task .* cannot be changed"):
        fixed = recipe(task=GSM8K, columns=Columns(prompt="q"))
        task_of(fixed, templates(fixed, trained()))


def test_the_verdict_deadline_is_that_of_the_slowest_verifier() -> None:
    Path("my_file.py").write_text("def grade(prompt, answer, gold): return 1.0")
    use = load_use(Permissions(use=["my_file.py"]))

    def wait(mixed: Recipe) -> float:
        return verdict_wait(mixed, verifier_of(mixed, task_of(mixed, templates(mixed, CALCULATOR)), use))

    machine = recipe().machine
    assert wait(recipe()) == wait(recipe(extra_tasks=(B,))) == machine.verdict_deadline
    assert wait(recipe(extra_tasks=(replace(B, verifier=Function("grade", "my_file.py")),))) == machine.rollout_deadline


def test_a_recipe_with_a_mixture_reads_back_and_differs() -> None:
    mixed = recipe(extra_tasks=(B, ExtraTask(task="c.jsonl")), held_out="c.jsonl", template="Q: {prompt}")
    Path("r.toml").write_text(write(mixed))
    assert read_recipe(Path("r.toml"), (), UserCode()) == mixed
    assert any(line.startswith("extra_tasks: none -> ") for line in diff(recipe(), mixed))


# Templates


def test_prompts_use_their_template() -> None:
    tokenizer = trained(CHATML)
    for name in ("no", "chat", "r1", "Q: {prompt}"):
        mixed = recipe(template=name)
        (template,) = templates(mixed, tokenizer).values()
        task = task_of(mixed, templates(mixed, tokenizer))
        assert all(p.token_ids == template(p.text) for p in (task[0], *task.held_out))
    assert task_of(recipe(), templates(recipe(), tokenizer))[0].token_ids == tokenizer.encode("1+2=", bos=True)


@dataclass(frozen=True)
class Feedback:
    """A user's strategy: it may append feedback to a conversation."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        raise NotImplementedError


def test_a_strategy_of_a_user_has_the_template_of_the_recipe() -> None:
    tokenizer = trained(CHATML)
    own = replace(grpo(), strategy=Feedback())
    chat = recipe(template="chat", method=own)
    (template,) = templates(chat, tokenizer).values()
    assert prompt_template(templates(chat, tokenizer))("7*5=") == template("7*5=")
    assert frame_of(chat, templates(chat, tokenizer)) == template.turn_frame() != ((), ())
    assert frame_of(recipe(template="chat"), templates(chat, tokenizer)) == (
        (),
        (),
    )  # independent answers have one turn
    mixed = recipe(method=own, extra_tasks=(ExtraTask(task=COUNTDOWN),))
    with pytest.raises(Usage, match="the problems use no, r1"):
        prompt_template(templates(mixed, tokenizer))("7*5=")


def test_system_arguments_and_tools_reach_the_templates_of_a_recipe() -> None:
    Path("mine.py").write_text(
        "from groupwise.environments import HermesFormat, Tools\n"
        "def add(a: int): ...\n"
        "def tools():\n    return Tools(HermesFormat(), {'add': add})\n"
        "class Mine(Tools):\n    def __init__(self):\n        super().__init__(HermesFormat(), {'add': add})\n"
        "class Game:\n    def reset(self, prompt, random): ...\n    def step(self, message): ...\n"
        "def broken():\n    raise ValueError('no server')\n"
    )
    use = load_use(Permissions(use=["mine.py"]))
    names = {name: tool_schemas(recipe(environment=name), use) for name in ("mine:tools", "mine:Mine", "mine:Game")}
    assert names["mine:tools"] == names["mine:Mine"] != names["mine:Game"] == ()
    with pytest.raises(Usage, match="the environment mine:broken cannot be created"):
        tool_schemas(recipe(environment="mine:broken"), use)
    talk = recipe(template="chat", system="Be brief.", template_arguments=(("think", False),), environment="mine:tools")
    (template,) = templates(talk, trained(CHATML), names["mine:tools"]).values()
    assert (template.system_message, template.template_variables) == ("Be brief.", (("think", False),))
    assert template.tool_schemas[0]["function"]["name"] == "add"
    assert read_recipe(write(talk), (), use) == talk
    changes = [("template_arguments.think", "true"), ("template_arguments.effort", "low"), ("system", "Be long.")]
    assert read_recipe(write(talk), changes, use).template_arguments == (("think", True), ("effort", "low"))


def test_an_environment_implies_turns() -> None:
    talk = recipe(environment="calculator_tools")
    assert talk.method.strategy == talk.evaluate.strategy == Turns()
    own = recipe(environment="calculator_tools", method=replace(grpo(), strategy=Turns(max_turns=2)))
    assert own.method.strategy == Turns(max_turns=2) and recipe().method.strategy == Independent()
    feedback = replace(grpo(), strategy=Feedback())
    assert recipe(environment="calculator_tools", method=feedback).method.strategy == Feedback()


# Printed


def run_command(*words: str, code: int, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert main(list(words)) == code
    output = capsys.readouterr()
    return output.out, output.err


def test_check_prints_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    rows("a.jsonl", [{"prompt": "1+2=", "answer": 3}, {"prompt": "1+2=", "answer": 3}, {"prompt": "2+2=", "answer": 2}])
    method = "{ base = 'gspo', objective.surrogate = { low = 0.05, high = 0.05 } }"
    Path("r.toml").write_text(f"task = 'a.jsonl'\nverifier = 'exact'\nmethod = {method}\nsampling.max_tokens = 8")
    out, _ = run_command("check", "r.toml", code=0, capsys=capsys)
    machine, first, *warnings, plan, last = out.splitlines()
    assert machine == "machine: cpu, float32"
    assert plan.startswith("plan: 223,520 weights, 256 answers and at most 2,048 tokens per iteration, about 0.")
    assert first.startswith("data: a.jsonl: 3 rows, 1 to train on, 1 held out, sha256 ")
    assert warnings == [
        "  warning: row 2 repeats the problem of an earlier row: left out",
        "  warning: the prompt contains the answer in row 3",
        "  note: an iteration draws 16 prompts from 1 problem: up to 16 times the same one",
    ]
    assert last == "r.toml: ok"


def test_hints_about_templates() -> None:
    notes_printed = check_inputs(recipe(template="r1"), UserCode()).notes
    assert not any("</answer>" in line for line in notes_printed)  # this model has no such characters
    from groupwise.checks.check_data import data_notes

    mixed = recipe(template="r1")
    by_name = templates(mixed, trained())
    lines = data_notes(mixed, task_of(mixed, by_name), by_name)
    assert lines[-1] == "  note: answers with the template r1 end with </answer>: add --sampling.stop '</answer>'"
    mixed = replace(mixed, sampling=replace(mixed.sampling, stop=("</answer>",)))
    assert len(data_notes(mixed, task_of(mixed, by_name), by_name)) == len(lines) - 1


def test_training_on_a_held_out_task_is_refused_and_evaluation_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    rows("e.jsonl", [{"problem": "1+2=", "answer": "3"}])
    words = ["--task", "aime24", "--task.source", "e.jsonl", "--template", "no", "--verifier", "last_number"]
    words += ["--sampling.max_tokens", "8"]
    _, err = run_command("train", *words, code=3, capsys=capsys)
    assert "has no training problems" in err and "held_out" in err
    out, err = run_command("eval", "calculator", *words, code=0, capsys=capsys)
    assert "95 % over 1 problem" in out and "1 row, 1 held out" in err


# Recorded


def test_a_run_records_its_data_and_resume_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *SMALL, "--task", "a.jsonl", "--verifier", "last_number", "--name", "m"]
    words += [
        "--extra_tasks",
        "[{task = 'b.jsonl', columns = {prompt = 'q', answer = 'x.gold'}}]",
        "--held_out",
        "c.jsonl",
    ]
    _, err = run_command(*words, "--stop-after", "0.001s", code=0, capsys=capsys)
    assert (
        err.startswith("machine: cpu, float32\ndata: a.jsonl: 20 rows") and "data: c.jsonl: 4 rows, 4 held out" in err
    )
    (run,) = Path("runs").iterdir()
    about = json.loads((run / "run.json").read_text())
    assert [d["source"] for d in about["data"]] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert all(len(d["sha256"]) == 64 for d in about["data"]) and len(about["templates"]["no"]) == 64
    rows("b.jsonl", [{"q": f"{i}*4=", "x": {"gold": str(i * 4)}} for i in range(1, 5)])
    _, err = run_command("resume", str(run), code=3, capsys=capsys)
    assert "b.jsonl differs from" in err
    same = [{"q": f"{i}*3=", "x": {"gold": str(i * 3)}} for i in range(1, 5)]
    rows("b.jsonl", [{**row, "new": 1} for row in same])  # a grader may read it
    run_command("resume", str(run), code=3, capsys=capsys)
    rows("b.jsonl", [{**row, "new": None} for row in same])
    run_command("resume", str(run), code=0, capsys=capsys)


def test_an_overlap_between_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rows("c.jsonl", [{"prompt": "3+2=", "answer": 5}])
    words = ["train", *SMALL, "--task", "a.jsonl", "--verifier", "last_number", "--held_out", "c.jsonl"]
    _, err = run_command(*words, code=3, capsys=capsys)
    assert "1 problem to train on is held out too" in err and "1:a/3 and 2:c/1" in err
    with pytest.raises(BadData):
        task_of(recipe(held_out="c.jsonl"), templates(recipe(held_out="c.jsonl"), CALCULATOR))


@pytest.mark.t(44)
def test_a_resumed_mixture_ends_with_the_bytes_of_one_without_a_stop(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *SMALL, "--iterations", "4", "--task", "a.jsonl", "--verifier", "last_number"]
    words += ["--extra_tasks", "[{task = 'b.jsonl', weight = 3, columns = {prompt = 'q', answer = 'x.gold'}}]"]
    run_command(*words, "--out", "whole", code=0, capsys=capsys)
    run_command(*words, "--out", "parts", "--stop-after", "0.001s", code=0, capsys=capsys)
    (whole,), (parts,) = Path("whole").iterdir(), Path("parts").iterdir()
    run_command("resume", str(parts), code=0, capsys=capsys)
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    prompts = [json.loads(line)["prompt"] for f in sorted((whole / "samples").glob("*.jsonl")) for line in f.open()]
    assert len({str(p) for p in prompts}) > 4


def test_a_missing_user_verifier_is_a_usage_error() -> None:
    Path("r.toml").write_text(write(recipe(extra_tasks=(replace(B, verifier=Function("grade", "my_file.py")),))))
    with pytest.raises(Usage, match="my_file"):
        read_recipe(Path("r.toml"), (), UserCode())


def test_a_held_out_task_may_have_fixed_columns() -> None:
    rows("e.jsonl", [{"problem": "1+2=", "answer": "3"}])
    mixed = recipe(task="b.jsonl", columns=B.columns, held_out=AIME, template="no")
    assert [p.text for p in task_of(mixed, templates(mixed, CALCULATOR)).held_out] == ["1+2="]


def test_a_mixed_task_without_training_problems_is_refused() -> None:
    rows("e.jsonl", [{"problem": "7*7=", "answer": "49"}])
    mixed = recipe(extra_tasks=(ExtraTask(task=AIME),), template="no", sampling=Sampling(max_tokens=8))
    assert [problem.what for problem in check_inputs(mixed, UserCode()).errors] == [
        "aime24:e.jsonl has no training problems"
    ]
    assert check_inputs(recipe(sampling=Sampling(max_tokens=8)), UserCode()).errors == []


def test_code_tests_of_a_mixture_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = {"function": "f", "cases": [{"args": [1], "expected": 2}]}
    rows("e.jsonl", [{"prompt": "1+1=", "answer": tests}, {"prompt": "1+2=", "answer": tests}])
    tried: list[str] = []
    monkeypatch.setattr(CodeVerifier, "gate", lambda self, prompts: tried.extend(p.text for p in prompts))
    mixed = recipe(extra_tasks=(ExtraTask(task="e.jsonl", verifier=Code()),), sampling=Sampling(max_tokens=8))
    assert check_inputs(mixed, UserCode(unsafe_local_exec=True)).errors == []
    assert sorted(tried) == ["1+1=", "1+2="]


def test_a_run_loads_its_task_and_verifier_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("_load_task", "_verifier"):
        act = getattr(sources_module, name)
        monkeypatch.setattr(sources_module, name, lambda *args, name=name, act=act: calls.append(name) or act(*args))
    words = ["--prompts", "2", "--method.group_size", "2", "--method.minibatches", "1", "--evaluate.problems", "2"]
    assert main(["train", "--out", str(tmp_path), "--iterations", "1", *words]) == 0
    assert calls == ["_load_task", "_verifier"]
