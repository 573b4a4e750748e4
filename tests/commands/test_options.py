"""The words of the command line: second names of fields, options that do not exist, and each command's help."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands.command_table import COMMANDS, Command
from groupwise.commands.help_epilog import EXAMPLES
from groupwise.commands.parsing import parse, parser
from groupwise.commands.unknown_options import check_options, named_fields
from groupwise.config.fields import SECOND_NAMES
from groupwise.config.train_keyword_arguments import fields_of

SMALL = ["--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "2", "--max_tokens", "8"]


def test_data_and_reward_train_on_the_users_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f'{{"prompt": "{a}+{b}=", "answer": {a + b}}}\n' for a in range(4) for b in range(4))
    Path("problems.jsonl").write_text(rows)
    Path("my_reward.py").write_text("def reward(answer):\n    return len(set(answer)) / 10\n")
    assert main(["train", "--data", "problems.jsonl", "--reward", "my_reward.py:reward", *SMALL, "--iterations=1"]) == 0
    (run,) = Path("runs").iterdir()
    recipe = (run / "recipe.toml").read_text()
    assert 'source = "problems.jsonl"' in recipe and 'file = "my_reward.py"' in recipe and "max_tokens = 8" in recipe
    assert capsys.readouterr().out.startswith(f"using {Path('my_reward.py').resolve()}")


def test_both_doors_have_the_same_second_names() -> None:
    for word, field in SECOND_NAMES.items():
        assert named_fields([(word, "1")]) == [(field, "1")]
        assert fields_of({}, {word: "1"}) == {field: "1"}
    assert named_fields([("data.source", "x"), ("reward.which_answer", "first")]) == [
        ("task.source", "x"), ("verifier.which_answer", "first"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", "--data", "a", "--task", "b"], "leave one of them out"),
        (["train", "--held-out", "x"], "write --held_out"),
        (["train", "--max-tokens", "9"], "write --max_tokens"),
        (["train", "--learning-rate", "1"], "write --optimizer.lr 1\n"),
        (["train", "--learning_rate", "fast"], "write --optimizer.lr 1e-6"),
        (["train", "--loss_type", "dr_grpo"], "write --method dr_grpo\n"),
        (["train", "--bf16", "true"], "write --machine.dtype bfloat16"),
        (["train", "--train_batch_size", "64"], "write --prompts 32 (prompts of one iteration)"),
        (["train", "--use_peft", "--lora_r", "8"], "write --lora.rank 16"),
        (["train", "--shaping", "Score"], "did you mean --method.shaping?"),
        (["train", "trainer.save_freq=5", "data.val_files=y.jsonl"], "write --held_out y.jsonl"),
        (["train", "prompts=5"], "an option begins with two dashes: --prompts 5"),
        (["train", "--tp", "4"], """write --engine '{ kind = "Vllm", tensor_parallel_size = 4 }'"""),
        (["help", "Overlong"], "did you mean OverlongPenalty?"),
        (["train", "--optimiser.eps", "1"], "did you mean --optimizer.eps?"),
        (["train", "--method.objective.surrogat.low", "1"], "did you mean --method.objective.surrogate.low?"),
        (["train", "--stop_after", "2h"], "did you mean --stop-after?"),
        (["train", "--lora", "--data", "x"], "--lora VALUE; groupwise help lora explains it"),
        (["train", "--iterations"], "write --iterations 100; groupwise help iterations explains it"),
        (["train", "--colour", "red"], "groupwise train --help the other options"),
        (["train", "--method.colour", "red"], "the names are group_size"),
        (["train", "--output_dir", "x"], "--out DIR"),
        (["check", "--lr", "1e-4"], "write --optimizer.lr 1e-4"),
        (["show", "x.toml", "--use"], "leave it out: it is an option of train"),
        (["methods", "--all"], "its options are --family, --like, --map"),
        (["methods", "--familly", "ratio"], "did you mean --family?"),
        (["methods", "ratio"], "groupwise methods --help"),
        (["doctor", "--jsn"], "did you mean --json?"),
        (["diff", "grpo", "dapo", "--colour"], "leave it out: it has none"),
        (["resume", "runs/x", "--prompts", "4"], "a field of a recipe is an option of train"),
        (["report", "runs/x", "--lr=4"], "a field of a recipe is an option of train"),
    ],
)
def test_an_unknown_option_has_its_fix(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    output = "".join(capsys.readouterr())
    assert fix in output and "usage:" not in output


def test_all_unknown_options_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--lr", "1", "--num_generations", "8"]) == 2
    output = capsys.readouterr().err
    assert "write --optimizer.lr" in output and "write --method.group_size" in output


def test_a_recipe_has_the_first_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.toml").write_text('method = "grpo"\ndata = "rows.jsonl"\nreward.kind = "math"\n')
    assert main(["check", "r.toml"]) == 2
    output = capsys.readouterr().out
    assert "write task, its name in a recipe" in output and "write verifier.kind, its name in a recipe" in output


def test_a_method_in_any_case_is_shown_and_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "GSPO"]) == 0 and main(["diff", "GRPO", "Dr. GRPO"]) == 0
    assert capsys.readouterr().out.startswith("gspo: Group Sequence")
    with pytest.raises(SystemExit):
        main(["grpo", "--model", "x"])
    assert "it is a method: groupwise train --method grpo" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_shows_the_command_s_own_examples(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command.name, "--help"])
    output = capsys.readouterr().out
    names = [name for names, _ in command.options + command.permission_options for name in names]
    assert "examples:\n" in output and f"groupwise {command.name}" in output.partition("examples:")[2]
    assert all(output.index(f"  {name}") < output.index("examples:") for name in names)
    assert ("sets a field of the recipe." in output) == command.takes_recipe_fields
    assert ("surrogate weights penalties aggregate" in output) == (command.name == "train")
    table, options = parser()
    for line in EXAMPLES[command.name].replace("\\\n", "").splitlines():
        if line.startswith("groupwise "):
            a, overrides = parse(table, options, shlex.split(line)[1:])
            check_options(a.command, named_fields(overrides))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_says_what_each_argument_is(command: Command) -> None:
    assert all(settings.get("help") for _, settings in (*command.arguments, *command.options))


NEEDING = [c for c in COMMANDS if any(settings.get("nargs", "+") == "+" for _, settings in c.arguments)]
"""Commands that cannot do without an argument."""


@pytest.mark.parametrize("command", NEEDING, ids=lambda command: command.name)
def test_an_error_of_a_command_has_its_form_and_an_example_in_a_few_lines(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main([command.name])
    error = capsys.readouterr().err
    assert ending.value.code == 2 and len(error.splitlines()) <= 5
    assert error.startswith(f"usage: groupwise {command.name} ") and "\nerror: " in error
    assert f"such as: {EXAMPLES[command.name].splitlines()[0]}" in error


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table, _ = parser()
    (subcommands,) = (action for action in table._actions if isinstance(action, argparse._SubParsersAction))
    for command in subcommands.choices.values():
        text, _, _ = command.format_help().partition("\nexamples:")
        assert all(len(line) <= max(columns, 80) for line in text.splitlines())
    lines = subcommands.choices["train"].format_help().splitlines()
    fields = lines[lines.index("examples:") :]
    assert all(len(line) <= max(columns, 80) for line in fields)
    assert max(len(line) for line in fields if line.startswith(" " * 24)) <= min(columns, 120)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "optimizer.lr: the learning rate"),
        ("--learning-rate", "optimizer.lr: the learning rate"),
        ("num_generations", "method.group_size: answers to one prompt"),
        ("data", "task: a packaged task"),
        ("reward.which_answer", "a constant of the component in verifier"),
        ("Clip", "  high: a number, default 0.2\n"),
        ("token_mean", "a value of method.objective.aggregate"),
        ("sequence_ratio", "GSPO"),
        ("math", "Math: Right if the answer equals"),
        ("tensor_parallel_size", "engine here\n\nVllm: Runs"),
    ],
)
def test_help_knows_other_names_and_components(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("gspo", "it is a method: groupwise show gspo"),
        ("train", "it is a command: groupwise train --help"),
        ("stop-after", "--stop-after is an option of train, resume"),
        ("max_refills", "did you mean method.max_refills?"),
        ("cp_size", "leave it out: each sample is computed on one device"),
        ("colour", "groupwise help prints all fields"),
    ],
)
def test_help_names_the_command_that_knows(name: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 2
    assert fix in capsys.readouterr().err


def test_unknown_options_import_no_torch() -> None:
    script = "import sys; from groupwise.__main__ import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    words = ["train", "--lr", "1"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", "rows.jsonl"], "data are named with an option: --data rows.jsonl"),
        (["check", "rows.csv"], "--data rows.csv"),
        (["train", "gsm8k"], "--data gsm8k"),
        (["train", "mine.py"], "--reward mine.py:NAME"),
        (["train", "a-model"], "--model a-model"),
        (["train", "Qwen/Qwen3-0.6B"], "--model Qwen/Qwen3-0.6B"),
        (["train", "runs/old-20260101-000000"], "groupwise resume runs/old-20260101-000000"),
        (["check", "runs/old"], "groupwise resume runs/old-20260101-000000"),
        (["train", "--reward", "mine.py"], "write --reward mine.py:grade or --reward mine.py:other"),
        (["train", "--reward", "mien.py"], "did you mean mine.py?"),
    ],
)
def test_a_recipe_that_is_something_else_has_its_option(
    words: list[str], fix: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rows.jsonl", "rows.csv"):
        Path(name).write_text("")
    Path("mine.py").write_text("def grade(answer):\n    return 1\n\n\ndef other(answer):\n    return 2\n")
    Path("a-model").mkdir()
    Path("a-model/config.json").write_text("{}")
    run = Path("runs/old-20260101-000000")
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    assert main(words) == 2
    assert fix in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [["eval"], ["chat"], ["merge", "out"], ["resume"], ["report"], ["export", "out"]])
def test_a_run_that_does_not_exist_is_no_model(
    words: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], "runs/first", *words[1:]]) == 3
    assert f"there is no directory {home / 'runs'}" in capsys.readouterr().err
    run = Path("runs/second-20260101-000000")
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text("")
    assert main([words[0], "runs/first", *words[1:]]) == 3
    output = capsys.readouterr().err
    assert "runs/first is not a run" in output and "runs has second-20260101-000000" in output


def test_a_directory_that_takes_no_files_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", "/proc/x", "--iterations", "0"]) == 6
    output = capsys.readouterr().err
    assert "name another directory: /proc takes no new ones" in output and "make ." not in output
