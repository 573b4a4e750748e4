"""Mistakes of a first day: each is refused before anything is loaded, with a fix that names the right thing."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import groupwise as gw
from groupwise.__main__ import main
from groupwise.checks.check_data import data_notes
from groupwise.commands.compare_evaluations import files
from groupwise.config.fields import recipe_fields
from groupwise.config.recipe_toml import read_recipe, read_with_problems
from groupwise.config.train_keyword_arguments import overrides_of
from groupwise.config.trl_and_verl_names import EARLIER_FIELDS, OTHER_VALUES, answers
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import BadData, InvalidValue, Usage
from groupwise.data import Outcome, Prompt
from groupwise.data.verdicts import as_verdict
from groupwise.models import Decoder, different_ids, find_model, find_template, read_tokenizer, write_model
from groupwise.runs.find_run import run_or_model
from groupwise.runs.next_command import recorded_code, resume_command
from groupwise.runs.run_info import FORMAT
from groupwise.tasks.named_tasks import CONVERSIONS, named_task
from groupwise.verifiers import grade_function
from groupwise.verifiers.function_verifier import verdicts_of
from groupwise.verifiers.grade_function_arguments import GradeFunctionParameters
from tests.checks import check
from tests.models.directories import bytes_, shape
from tests.models.test_templates import trained

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def refusals(*fields: tuple[str, str]) -> str:
    return "\n".join(map(str, check(None, fields)))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("machine.device", "tpu", "use cpu or cuda"),
        ("machine.device", "cuda:99", "machine has no"),
        ("trackers", '["wandb"]', "pip install 'groupwise[wandb]'"),
        ("trackers", '["nope"]', "the trackers are"),
        ("engine.kv_cache_tokens", "1", "use --engine.kv_cache_tokens "),
        ("lora.rank", "100000", "use a rank of at most 96"),
    ],
)
def test_check_refuses_what_train_refuses(field: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("groupwise.checks.check_machine.find_spec", lambda name: None)
    assert words in refusals((field, value))


def test_more_threads_than_cores_are_a_warning() -> None:
    notes: list[str] = []
    assert check(None, [("machine.threads", "4000")], notify=notes.append) == []
    assert any("machine.threads is 4000" in note for note in notes)


def test_check_takes_a_command_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--iterations", "3"]) == 0
    assert capsys.readouterr().out.endswith("recipe: ok\n")
    assert main(["check", "--recipe", "calculator"]) == 0
    assert main(["show", "calculator"]) == 0
    assert 'model = "calculator"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", ""], "leave the argument out"),
        (["check", ""], "leave the argument out"),
        (["train", "grpo"], "groupwise train --method grpo"),
        (["check", "a.toml", "--recipe", "smollm2"], "leave one out"),
        (["train", "--learning_rate", "1e-5"], "write --optimizer.lr 1e-5"),
        (["train", "--num_generations", "8"], "write --method.group_size 8"),
        (["train", "--data.train_batch_size", "64"], "write --prompts 32"),
        (["train", "--actor_rollout_ref.rollout.n=8"], "write --method.group_size 8"),
        (["train", "--actor_rollout_ref.actor.optim.lr", "1"], "write --optimizer.lr 1"),
        (["train", "--algorithm.adv_estimator", "grpo"], "write --method grpo"),
        (["train", "--trainer.n_gpus_per_node", "8"], "write --cluster.ranks 2 (a process on each GPU that learns"),
        (["train", "--per_device_train_batch_size", "8"], "write --machine.microbatch_tokens"),
        (["train", "--method.num_generations", "8"], "write --method.group_size"),
        (["train", "data.train_batch_size=64"], "write --prompts 32"),
        (["check", "rings"], "name it with an option: --recipe rings"),
        (["eval", "calculator", "--smaples", "4"], "did you mean --samples?"),
        (["sweep", "--sed", "0..4"], "did you mean --seed?"),
        (["train", "--extra_tasks", "x.jsonl"], 'write { task = "x.jsonl" }'),
        (["train", "--machine", "cuda"], "write --machine.device cuda"),
        (["train", "--verifier", "cod"], "did you mean code?\n"),
        (["train", "--verifier", "xyzzy"], "for your own function, write my_file:grade"),
        (["train", "--task", "big_sum"], "did you mean big_sums?\n        for your own rows, give the path of a"),
    ],
)
def test_a_mistake_has_its_fix(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), EARLIER_FIELDS.items())
def test_an_earlier_name_of_a_field_is_answered_with_the_present_one(old: str, new: str) -> None:
    method = "" if old.startswith("method.") else "method = 'grpo'\n"
    _, problems = read_with_problems(
        f"{method}{old} = 1" if method else f"method.base = 'grpo'\n{old} = 1", [], UserCode()
    )
    assert new in recipe_fields() or new in (
        "extra_tasks",
        "engine.placement",
        "engine.max_stored_answers",
        "engine.keyed_randomness",
    ), new
    assert f"write {new}, its name here" in str(problems[0])


@pytest.mark.parametrize(("field", "old"), OTHER_VALUES)
def test_a_value_of_verl_or_of_an_earlier_recipe_is_answered_with_the_present_one(field: str, old: str) -> None:
    kind = 'engine.kind = "Served"\n' if field.startswith("engine.") else ""
    method = "" if field == "method" else "method.base = 'grpo'\n"
    _, problems = read_with_problems(f"{method}{kind}{field} = '{old}'", [], UserCode())
    assert f"write {OTHER_VALUES[field, old]!r}, its name here" in str(problems[0])


def test_names_of_other_libraries_are_those_of_the_page() -> None:
    page = PAGE.read_text("utf-8")
    lines = [line.split(" | ", 1) for line in page.splitlines() if line.startswith("| `") and " | " in line]
    checked = 0
    for name, answer in answers().items():
        if not (line := re.match(r"write ([\w.]+) = ", answer.command_line_text)) or "_" not in name:
            continue
        _, problems = read_with_problems(f"method.group_size = 8\nverl.{name} = 1", [], UserCode())
        assert f"write {line[1]}" in str(problems[0])
        rows = [right for left, right in lines if re.search(rf"[`.]{re.escape(name)}[` ]", left)]
        checked += bool(rows)
        assert not rows or any(f"`{line[1].partition('.')[0]}" in right for right in rows), name
    assert checked > 50


@pytest.mark.parametrize(
    "text", ["prompts = 'four'", "method.group_size = 0", "metod = 'x'", "sampling = 3", "seed = -1"]
)
def test_every_refusal_of_a_recipe_has_a_fix(text: str) -> None:
    _, problems = read_with_problems(text if "method" in text else f"method = 'grpo'\n{text}", [], UserCode())
    assert problems and all(problem.fix for problem in problems)


@pytest.mark.parametrize(("name", "text"), [("a.txt", "x\n")])
def test_a_file_of_another_format_comes_with_the_command_that_converts_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Usage) as error:
        named_task(str(tmp_path / name)).build(lambda text: (1,))
    command = error.value.fix.split("\n")[1]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "a.jsonl").read_text())["prompt"] == "x"
    assert Path(name).suffix in CONVERSIONS


def test_the_help_wins_over_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["train", "-h", "--foo"], ["eval", "--nope", "--help"]):
        with pytest.raises(SystemExit) as ending:
            main(words)
        assert ending.value.code == 0 and capsys.readouterr().out.startswith(f"usage: groupwise {words[0]} ")


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    recipe = tmp_path / "windows.toml"
    recipe.write_bytes(b"\xef\xbb\xbfmethod = 'grpo'\r\niterations = 3\r\n")
    assert read_recipe(recipe).iterations == 3


@pytest.mark.parametrize(("value", "words"), [("2020-01-01", "is a date"), ("07:32:00", "is a time")])
def test_a_date_is_no_string(value: str, words: str) -> None:
    _, problems = read_with_problems(f"method = 'grpo'\noptimizer.lr = {value}", [], UserCode())
    assert words in str(problems[0])


def test_a_clip_without_a_lower_bound_is_a_note() -> None:
    for value, count in (("2", 1), ("0.9", 0)):
        notes: list[str] = []
        assert check(None, [("method.objective.surrogate.low", value)], notify=notes.append) == []
        assert sum("Clip has no lower bound" in note for note in notes) == count


def test_the_letters_of_options_in_a_prompt_are_no_warning(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+1= A) 4 B) {i + 1}", "answer": "B"} for i in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    directory = tmp_path / "tiny"
    write_model(Decoder.new(shape(vocabulary_size=300), 1, spread=0.2), directory, tokenizer=bytes_())
    fields = [("task", str(tmp_path / "rows.jsonl")), ("model", str(directory)), ("sampling.max_tokens", "8")]
    for verifier, count in (("option_choice", 0), ('{kind = "option_choice", option_letters = "ABC"}', 0), ("text", 1)):
        notes: list[str] = []
        assert check(None, [*fields, ("verifier", verifier)], notify=notes.append) == []
        assert sum("contains the answer" in note for note in notes) == count, verifier


def test_rows_in_other_characters_name_the_model(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "What is 2+4?", "answer": 6}\n{"prompt": "What is 1+1?", "answer": 2}\n')
    refusal = refusals(("task", str(rows)), ("verifier", "last_number"))
    assert "2 of 2 rows cannot be used" in refusal and "use another model, such as --model DIR" in refusal
    assert "correct or remove" not in refusal
    rows.write_text('{"prompt": "What is 2+4?", "answer": 6}\n{"prompt": "1+1=", "answer": ""}\n')
    assert "correct or remove these rows" in refusals(("task", str(rows)), ("verifier", "last_number"))


@pytest.mark.parametrize("out", ["afile", "afile/deeper"])
def test_an_output_that_is_a_file_asks_for_another_name(
    out: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("afile").write_text("")
    assert main(["train", "--iterations", "0", "--evaluate.problems", "1", "--out", out]) == 6
    output = capsys.readouterr().err
    assert "name another directory" in output and "resume" not in output and "writable" not in output
    assert main(["train", "--iterations", "0", "--evaluate.problems", "1", "--name", "x" * 300]) == 6
    assert "use a shorter name" in capsys.readouterr().err


def test_an_evaluation_names_overrides_without_effect(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--problems", "2", "--samples", "1", "--out", str(tmp_path / "e.json")]
    assert main(["eval", "calculator", *words, "--iterations", "3", "--seed", "1"]) == 0
    assert "matter in training only: iterations\n" in capsys.readouterr().err
    assert main(["sample", "calculator", "1+1=", "--optimizer.lr", "1"]) == 0
    assert "matter in training only: optimizer.lr\n" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "e.json"), str(tmp_path / "e.json")]) == 2
    assert "A and B are the same evaluation" in capsys.readouterr().err


def test_an_evaluation_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "calculator", "--samples", "1000000000", "--problems", "2"]) == 2
    output = capsys.readouterr().err
    assert "2,000,000,002 answers need up to" in output and "lower --samples, --problems" in output


def test_a_report_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("method = [")
    assert main(["report", str(run)]) == 0
    output = capsys.readouterr().err.splitlines()
    assert output[0].startswith(f"warning: {run}: recipe.toml could not be parsed")
    assert output[1] == f"warning: {run}: no metrics in metrics.jsonl"


def test_dapo_trains_on_scores(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reward that is a number needs no other option: groups are selected by the spread of their scores."""
    Path("reward.py").write_text("def grade(answer):\n    return len(set(answer)) / 10 - 0.3\n")
    rows = [{"prompt": f"{i}+{j}=", "answer": i + j} for i in range(9) for j in range(5)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--task", "rows.jsonl", "--verifier", "reward:grade", "--use", "reward.py", "--method", "dapo"]
    sizes = ["--method.group_size", "4", "--prompts", "16", "--iterations", "1", "--evaluate.problems", "2"]
    assert main(["train", *words, *sizes, "--sampling.max_tokens", "12", "--name", "graded"]) == 0
    (run,) = Path("runs").iterdir()
    assert f"groupwise eval {run} --samples 8 --use " in capsys.readouterr().out
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["rollout/selected"] > 0 and last["reward_std"] > 0
    assert last["reward/min"] <= last["reward"] <= last["reward/max"]
    assert last["reward/max"] == pytest.approx(2 * last["score/max"] - 1, abs=1.0)  # less the overlong punishment


def test_check_compares_the_ids_with_those_of_transformers(tmp_path: Path) -> None:
    """transformers 5 gives a directory of the type qwen2 the pre-tokenizer of Qwen2, whatever tokenizer.json says."""
    notes: list[str] = []
    write_model(Decoder.new(shape(vocabulary_size=300), 1, spread=0.2), tmp_path / "tiny", tokenizer=bytes_())
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Was ist 1 plus 5?", "answer": 6}\n{"prompt": "Und 2 plus 2?", "answer": 4}\n')
    fields = [("model", str(tmp_path / "tiny")), ("task", str(rows)), ("verifier", "last_number")]
    assert check(None, [*fields, ("sampling.max_tokens", "8")], notify=notes.append) == []
    differs = different_ids(tmp_path / "tiny", read_tokenizer(tmp_path / "tiny"), ["Was ist 1 plus 5?"])
    assert any("AutoTokenizer does not follow" in note for note in notes) == bool(differs)
    other = read_tokenizer(find_model("calculator"))
    assert "ids here and" in different_ids(tmp_path / "tiny", other, ["1+1="])
    assert different_ids(tmp_path / "none", other, ["1+1="]) == ""


def test_a_method_with_a_name_and_fields_has_its_fix() -> None:
    with pytest.raises(Usage) as caught:
        read_recipe('method = "grpo"\nmethod.group_size = 4')
    assert "Cannot overwrite a value" in caught.value.evidence and "method.base" in caught.value.fix


def test_a_table_of_verl_has_a_row_for_each_of_its_fields() -> None:
    text = "[data]\ntrain_batch_size = 64\nnumber = 3\n[actor_rollout_ref.actor]\nppo_epochs = 2"
    _, problems = read_with_problems(f"method = 'grpo'\n{text}", [], UserCode())
    assert [(problem.what.partition("no field ")[2], problem.fix) for problem in problems] == [
        ("'data.train_batch_size'", answers()["train_batch_size"].command_line_text),
        ("'data.number'", "docs/coming-from.md has a row for each option of TRL and verl"),
        ("'actor_rollout_ref.actor.ppo_epochs'", answers()["ppo_epochs"].command_line_text),
    ]
    with pytest.raises(Usage, match=r"called 'actor_rollout_ref.rollout.n'") as caught:
        overrides_of({"actor_rollout_ref.rollout.n": 8})
    assert caught.value.fix == answers()["rollout.n"].command_line_text


def test_columns_may_have_the_names_of_other_libraries() -> None:
    assert GradeFunctionParameters.of(lambda answer, ground_truth: 0.0).keyword_names == ("answer", "ground_truth")
    assert GradeFunctionParameters.of(lambda answers, golds, completions: [0.0]).graded_unit == "bulk"


def test_a_number_of_numpy_or_torch_is_a_reward() -> None:
    assert as_verdict(np.float32(0.5)).score == 0.5 and as_verdict(torch.tensor(2)).score == 2.0
    assert as_verdict(np.bool_(True)).outcome is Outcome.correct
    assert "not one number" in as_verdict(torch.zeros(2)).cause and "not one number" in as_verdict(np.zeros(2)).cause
    assert [verdict.score for verdict in verdicts_of(np.array([0.5, 1.0]), 2)] == [0.5, 1.0]


def test_a_path_that_does_not_exist_names_the_files_beside_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mine.jsonl", "reward.py", "fast.toml", "data/rows.jsonl", "runs/first-20260131-120000/recipe.toml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    Path("models/tiny").mkdir(parents=True)
    for words, code, near in (
        (["train", "--task", "mine.jsnl"], 2, "mine.jsonl"),
        (["train", "--task", "minne.jsonl"], 3, "mine.jsonl"),
        (["train", "--task", "dta/rows.jsonl"], 3, "data"),
        (["train", "--model", "./models/tny"], 3, "models/tiny"),
        (["train", "fst.toml"], 2, "fast.toml"),
        (["check", "fst.toml"], 2, "fast.toml"),
        (["show", "fst.toml"], 2, "fast.toml"),
        (["check", "--use", "rewrd.py"], 2, "reward.py"),
        (["report", "runs/frst-20260131-120000"], 3, "runs/first-20260131-120000"),
        (["compare", "runs/frst-20260131-120000", "x"], 3, "runs/first-20260131-120000"),
    ):
        assert main(words) == code, words
        output = capsys.readouterr()
        message = output.err + output.out  # `check` prints errors
        assert f"did you mean {near}?" in message and "minerva" not in message, message


def test_a_misspelt_command_is_answered_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for word, words in (("chek", "did you mean check?"), ("zzz", "train, sweep, resume, ")):
        with pytest.raises(SystemExit) as ending:
            main([word, "x"])
        assert ending.value.code == 2 and f"no command is called {word!r}" in (output := capsys.readouterr().err)
        assert words in output


def test_the_library_finds_runs_as_the_command_line_does(home: Path) -> None:
    names = ("first-20260131-120000", "first-20260131-130000", "second-20260131-140000")
    for name in names:
        (run := Path("runs", name)).mkdir(parents=True)
        (run / "recipe.toml").touch()
    for name in ("first", "runs/first", "runs/first-*", "runs/f*", f"runs/{names[1]}"):
        assert gw.Run(name).directory == Path("runs", names[1])
    assert run_or_model("first") == f"runs/{names[1]}" and run_or_model("calculator") == "calculator"
    assert gw.Run("runs/*").directory == Path("runs", names[2])
    with pytest.raises(BadData, match="has no model yet, and no checkpoint"):
        gw.evaluate("runs/first")
    with pytest.raises(BadData, match="runs/fist is not a run"):
        gw.Run("runs/fist")


REFUSED = (
    lambda: gw.grpo(group_size=1), lambda: gw.gspo(minibatches=0), lambda: replace(gw.dapo(), shaping=()),
    lambda: gw.Clip(-1.0), lambda: gw.AdamW(lr=-1.0), lambda: gw.Sampling(max_tokens=0), lambda: gw.EMA(decay=2.0),
    lambda: gw.OverlongPenalty(buffer_length=-1), lambda: gw.Machine(threads=0), lambda: gw.Recipe(method=gw.grpo(),
    seed=-1),
    lambda: gw.Turns(max_turns=0), lambda: gw.Lora(rank=0),
)  # fmt: skip


@pytest.mark.parametrize("construct", REFUSED, ids=range(len(REFUSED)))
def test_a_constructor_refuses_with_a_typed_error_and_its_fix(construct: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        construct()
    assert isinstance(caught.value, Usage) and isinstance(caught.value, ValueError)
    assert caught.value.fix and "\n" not in caught.value.what


def test_check_prints_errors_only_beside_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--machine.device", "tpu"]) == 2
    assert "plan:" not in (output := capsys.readouterr().out) and "tpu" in output.splitlines()[0]
    assert main(["check"]) == 0
    assert "plan:" in capsys.readouterr().out


def test_a_run_of_no_iterations_and_a_sweep_of_one_run_say_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--iterations", "0", "--evaluate.problems", "1"]) == 0
    output = capsys.readouterr()
    assert "note: iterations is 0: the run only evaluates and writes the model" in output.err
    assert output.out.startswith("note: no field has several values, so this sweep is one run")


def recorded(run: Path, verifier: str = '"exact"', **fields: object) -> None:
    """A run.json with the command and the code of a run, and a recipe with its verifier."""
    info = {
        "name": "a", "versions": {}, "model": "m", "task": "t", "method": {}, "seed": 0, "iterations": 1, "data": [],
        "recipe": "", "files": {}, "templates": {}, "command": "groupwise train", "use": {},
    }  # fmt: skip
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text(f"verifier = {verifier}")
    (run / "run.json").write_text(json.dumps({"format": FORMAT} | info | fields))


def test_the_next_command_names_the_code_of_the_run(tmp_path: Path) -> None:
    """A run whose reward is in a user's file, in the file that gw.train wrote, or in memory."""
    command = "groupwise train --use 'my code/grade.py' --judge example.com --key KEY"
    recorded(tmp_path / "file", command=command, use={"grade": "0", "grade/helper": "1"}, keys=["KEY"],
             judges=["example.com"])  # fmt: skip
    recorded(tmp_path / "written", command="gw.train(...)", use={"reward": "0"})
    (tmp_path / "written" / "code").mkdir()
    (tmp_path / "written" / "code" / "reward.py").touch()
    short = '{ kind = "Function", name = "short", file = "" }'
    members = f'{{ name = "a", verifier = {short} }}, {{ name = "c", verifier = "math" }}'
    members += ', { name = "b", weight = 0.5, verifier = { kind = "Function", name = "long", file = "" } }'
    members += ', { name = "d", verifier = { kind = "Function", name = "f", file = "tool.py" } }'
    several = f'{{ kind = "Combined", members = [{members}] }}'
    recorded(tmp_path / "memory", short, command="gw.train(...)", in_memory={"short": "0"})
    recorded(tmp_path / "both", short, in_memory={"short": "0"}, use={"tool": "0"}, keys=["KEY"])
    recorded(tmp_path / "several", several, in_memory={"short": "0", "long": "0"}, use={"tool": "0"})
    recorded(tmp_path / "unreadable", '"', in_memory={"short": "0"})
    dictionary = 'reward={"a": short, "c": "math", "b": (0.5, long), "d": "tool:f"})'
    for name, evaluate, call in (
        ("file", " --samples 8 --use 'my code/grade.py' --judge example.com --key KEY", 'use=["my code/grade.py"]'),
        ("written", f" --samples 8 --use {tmp_path}/written/code/reward.py", '/written/code/reward.py"]'),
        ("memory", f'gw.evaluate("{tmp_path}/memory", samples=8, reward=short)', "reward=short)"),
        (
            "both",
            'samples=8, permissions=gw.Permissions(use=["tool.py"], keys=["KEY"]), reward=short)',
            'permissions=gw.Permissions(use=["tool.py"], keys=["KEY"]), reward=',
        ),
        ("several", f'samples=8, permissions=gw.Permissions(use=["tool.py"]), {dictionary}', dictionary),
        ("unreadable", "samples=8, reward=...)", "reward=...)"),
    ):
        run = tmp_path / name
        with pytest.raises(BadData, match="has no evaluations") as caught:
            files(run)
        assert caught.value.fix.endswith(evaluate)
        with pytest.raises(BadData, match="has no model yet") as caught:
            _ = gw.Run(run).model_dir
        assert call in caught.value.fix
    assert resume_command(tmp_path / "memory", in_memory=["short"]).endswith('/memory", reward=short)')
    assert recorded_code(tmp_path / "nowhere") == ("", ())


def test_a_run_with_a_reward_in_memory_ends_with_a_line_of_python(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{i}+{j}="} for i in range(5) for j in range(4)]
    small = {"prompts": 4, "iterations": 0, "max_tokens": 4, "evaluate": {"problems": 2}}
    run = gw.train(model="calculator", data=rows, reward=lambda answer: np.float32(len(answer)), **small)
    assert f'try:    gw.evaluate("{run.directory}", samples=8, reward=reward)' in capsys.readouterr().out


def test_rows_without_gold_answers_or_in_another_encoding_have_their_fix(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "level": 2}\n')
    refusal = refusals(("task", str(rows)), ("verifier", "exact"))
    assert "no field 'answer'; it has prompt, level; without gold answers: --columns.answer=" in refusal
    rows.write_bytes('{"prompt": "caf\xe9", "answer": "2"}\n'.encode("latin-1"))
    assert "not UTF-8 (byte 0xe9): convert the file, such as by iconv" in refusals(("task", str(rows)))


def test_a_grader_that_is_late_is_told_how_to_get_more_time(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text("import time\n\n\ndef grade(answer):\n    time.sleep(9)\n    return 1.0\n")
    late = grade_function(load_use(Permissions(use=[file])).find("late:grade"), deadline=0.05)
    with pytest.raises(Usage, match="gives no grade for a made-up answer") as caught:
        late.gate([Prompt("p", (1,), "1+1=")])
    assert "--machine.verdict_deadline" in caught.value.fix


def test_a_chat_notes_only_the_users_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["chat", "calculator"]) == 0
    assert "without effect" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["chat", "calculator", "--optimizer.lr", "1"]) == 0
    assert "training only: optimizer.lr\n" in capsys.readouterr().err


def test_a_prompt_without_room_for_its_answer_is_named(tmp_path: Path) -> None:
    """Each data error names its rows; the fix gives the number that leaves these problems out."""
    rows = [{"prompt": "+".join(["1"] * (n // 2 + 1)) + "=", "answer": n} for n in (2, 4, 90, 6, 100, 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = [("task", str(tmp_path / "rows.jsonl")), ("verifier", "last_number"), ("sampling.max_tokens", "60")]
    (error,) = check(None, fields)
    assert re.findall(r"\d+", error.what) == ["2", "60", "128"]
    assert "rows/3: 92 tokens" in error.evidence and "rows/5: 102 tokens" in error.evidence
    assert error.fix == "lower sampling.max_tokens to 26; or leave such problems out: --max_prompt_tokens 68"
    notes: list[str] = []
    assert check(None, [*fields, ("max_prompt_tokens", "68")], notify=notes.append) == []
    assert any("2 rows (3, 5) have more prompt tokens" in note for note in notes)
    assert "makes its own problems" in refusals(("max_prompt_tokens", "9"))
    assert "max_prompt_tokens is 0" in refusals(("max_prompt_tokens", "0"))


def test_an_instruct_model_without_its_chat_template_is_a_note(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n')
    task = named_task(str(rows)).build(lambda text: (1,))
    told = "  note: prompts are text as it is, and the model has a chat template: add --template chat"
    for line, tokenizer, note in [("", trained(), told), ("template = 'no'\n", trained(), ""), ("", trained(None), "")]:
        recipe = read_recipe(f"{line}method = 'gspo'\ntask = '{rows}'")
        lines = data_notes(recipe, task, {"no": find_template("no", tokenizer)})
        assert [line for line in lines if "template" in line] == [note] * bool(note)


def test_repeated_problems_and_open_conversations_are_notes(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": 2}\n{"prompt": "1+2=", "answer": 3}\n')
    fields = [("task", str(rows)), ("verifier", "last_number")]
    for prompts, count in (("16", 1), ("1", 0)):
        notes: list[str] = []
        assert check(None, [*fields, ("prompts", prompts), ("method.minibatches", "1")], notify=notes.append) == []
        drawn = "an iteration draws 16 prompts from 1 problem: up to 16 times the same one"
        assert sum(drawn in note for note in notes) == count
    user, assistant = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "1+1="}
    lines = [{"prompt": [user, assistant], "answer": 2}, {"prompt": [{**user, "content": "2+1="}], "answer": 3}]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    notes = []
    task = named_task(str(rows)).build(lambda messages: (1,))
    recipe = read_recipe(f"method = 'gspo'\ntask = '{rows}'")
    assert data_notes(recipe, task, {})[-1] == (
        "  note: 1 prompt ends with an assistant's message: the model continues it; its own text is graded"
    )
