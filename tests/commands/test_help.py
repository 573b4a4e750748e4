"""The command line: help without torch, words to calls, errors to exit codes."""

import subprocess
import sys
from dataclasses import fields, is_dataclass
from types import NoneType, SimpleNamespace
from typing import Any, get_args

import pytest

import groupwise.commands
import groupwise.report
from groupwise.__main__ import main
from groupwise.api.options import RunOptions
from groupwise.commands.help_epilog import fields_table
from groupwise.commands.options import seconds
from groupwise.commands.parsing import parse, parser
from groupwise.config.parse_toml_values import hints_of
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import Permissions
from groupwise.core import Storage, Usage
from groupwise.data import EngineSettings
from groupwise.engines import Native

COMMANDS = (
    "train", "sweep", "resume", "eval", "sample", "chat", "serve", "report", "watch", "compare", "merge", "methods",
    "show", "diff", "check", "doctor", "help", "completion",
)  # fmt: skip

# Help


def test_help_of_every_command_imports_no_room():
    """Imports make `--help` slow; argparse does not."""
    script = """
import sys
from groupwise.__main__ import main
for words in ([], ["--help"], ["--version"], *([c, "--help"] for c in sys.argv[1:])):
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
heavy = {"torch", "numpy", "transformers", "tokenizers", "safetensors", "jaxtyping", "tomllib", "asyncio"}
files = ("", ".command_table", ".help_epilog", ".user_code_files", ".options", ".parsing")
own = {"groupwise.__main__", *(f"groupwise.commands{file}" for file in files)}
ours = {m for m in sys.modules if m.startswith("groupwise.")} - own
print("LOADED", sorted(ours | heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, *COMMANDS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"
    assert done.stdout.count("usage: groupwise") == 2 + len(COMMANDS)
    for command in COMMANDS:
        assert f"usage: groupwise {command}" in done.stdout


def test_the_table_of_fields_is_current():
    """The help of `train` lists every section and field of a recipe in order."""

    def names(cls: type) -> list[str]:
        return [f.name for f in fields(cls) if not (cls is Recipe and section(cls, f.name) and f.name != "method")]

    def kind(cls: type, name: str) -> Any:
        """The type of a field without None; for an engine its default kind."""
        hint = hints_of(cls)[name]
        if hint is EngineSettings:
            return Native
        arms = [arm for arm in get_args(hint) if arm is not NoneType]
        return arms[0] if len(arms) == 1 else hint

    def section(cls: type, name: str) -> bool:
        return isinstance(kind(cls, name), type) and is_dataclass(kind(cls, name))

    expected = [("(top)", names(Recipe))]
    for f in fields(Recipe):
        if section(Recipe, f.name):
            inner = kind(Recipe, f.name)
            expected.append((f.name, ["base"] * (f.name == "method") + names(inner)))
            expected += [
                (f"{f.name}.{g.name}", names(kind(inner, g.name))) for g in fields(inner) if section(inner, g.name)
            ]
    table = fields_table(100).splitlines()
    listed: list[tuple[str, list[str]]] = []
    for line in table:
        words = line.split()
        if line.startswith("    "):
            listed[-1][1].extend(words)
        else:
            listed.append((words[0], words[1:]))
    assert listed == expected


# Words to calls


@pytest.fixture
def calls(monkeypatch):
    """The calls of the commands, recorded instead of executed."""
    recorded = []

    def record(name):
        def call(*args, **options):
            recorded.append((name, args, options))
            return 0

        return call

    for room, file, names in (
        (groupwise.commands, "train", ("train", "resume")),
        (groupwise.commands, "eval", ("evaluate", "sample")),
        (groupwise.commands, "compare_evaluations", ("compare",)),
        (groupwise.report, "report", ("report",)),
    ):
        fake = SimpleNamespace(**{name: record(name) for name in names})
        monkeypatch.setitem(sys.modules, f"{room.__name__}.{file}", fake)
        monkeypatch.setattr(room, file, fake, raising=False)
    return recorded


def allowed(*use: str, **others: Any) -> Permissions:
    return Permissions(**{"use": [*use], "keys": [], "judges": [], "engine_hosts": [], "engine_nccl": [], **others})


def options(line: str, permissions: Permissions | None = None, **others: Any) -> RunOptions:
    """The options of a line of words that starts or continues a run."""
    return RunOptions(permissions=permissions or allowed(), command_line=f"groupwise {line}", **others)


LONG = "train --iterations 50 a.toml --method.epochs=-3 --use m.py --use n.py --stop-after 1h30m --out o --name x"
TRUSTING = "resume r --changed --iterations 9 --trust-remote-code --unsafe-local-exec --key K --judge h"
TRUSTED = allowed(trust_remote_code=True, unsafe_local_exec=True, keys=["K"], judges=["h"])


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("train", ("train", (None, [], options("train")), {"recipe_name": None, "push": ""})),
        (
            LONG,
            (
                "train",
                ("a.toml", [("iterations", "50"), ("method.epochs", "-3")],
                 options(LONG, allowed("m.py", "n.py"), out="o", name="x", stop_after_seconds=5400.0)),
                {},
            ),
        ),
        ("train --task -", ("train", (None, [("task", "-")], options("train --task -")), {})),
        ("train --method.mask []", ("train", (None, [("method.mask", "[]")], options("train --method.mask '[]'")), {})),
        ("train --recipe smollm2 --push me/it", (
            "train", (None, [], options("train --recipe smollm2 --push me/it")),
            {"recipe_name": "smollm2", "push": "me/it"},
        )),
        ("resume r --strict --stop-after 90", (
            "resume",
            ("r", options("resume r --strict --stop-after 90", strict_checkpoints=True, stop_after_seconds=90.0)),
            {"push": ""},
        )),
        (TRUSTING, ("resume", ("r", options(TRUSTING, TRUSTED, accept_changes=True, iterations=9)), {})),
        ("eval r", ("evaluate", ("r", [], allowed()), {"samples": None, "problems": None, "preset": None, "at": None})),
        (
            "eval m --at 3 --samples 8 --problems 10 --recipe a.toml --sampling.top_p 0.9",
            ("evaluate", ("m", [("sampling.top_p", "0.9")], allowed()), {"problems": 10, "recipe_path": "a.toml"}),
        ),
        ("sample m 1+1= -n 3 --at best --seed 4 --use m.py", (
            "sample", ("m", "1+1=", [("seed", "4")], Permissions(use=["m.py"])), {"n": 3, "at": "best"},
        )),
        ("eval m --preset p --preset-data d", ("evaluate", ("m", [], allowed()), {"preset": "p", "preset_data": "d"})),
        ("compare a b --allow n --allow x.y", ("compare", ("a", "b", ["n", "x.y"]), {})),
        ("report a b --out c.html", ("report", (["a", "b"], "c.html"), {})),
    ],
)  # fmt: skip
def test_words_become_calls(calls, line, call):
    assert main(line.split()) == 0
    ((name, args, options),) = calls
    assert (name, args) == call[:2]
    assert call[2].items() <= options.items()


def test_the_recorded_command_is_quoted_for_a_shell(calls):
    main(["train", "a b.toml", "--task", "x y"])
    assert calls[0][1][2].command_line == "groupwise train 'a b.toml' --task 'x y'"


@pytest.mark.parametrize(
    "line",
    [
        "train a.toml b.toml", "-v", "trian", "resume", "resume r --iterations many",
        "export r", "eval r --at many", "show", "diff a",
        "train --stop-after soon", "train --stop-after h", "eval r --samples 0", "eval r --samples many",
        "sample m",
    ],
)  # fmt: skip
def test_invalid_words_exit_with_2_and_the_usage(calls, line, capsys):
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 2 and calls == []
    assert "usage: groupwise" in capsys.readouterr().err


def test_words_after_two_dashes_are_no_overrides():
    a, overrides = parse(*parser(), ["sample", "m", "--seed", "3", "-n", "2", "--", "--1="])
    assert (a.model, a.prompt, a.n, overrides) == ("m", "--1=", 2, [("seed", "3")])


@pytest.mark.parametrize(("text", "result"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("1h1m1s", 3661)])
def test_times(text, result):
    assert seconds(text) == result


# Commands without a model


def test_diff_methods_show_check(capsys, tmp_path):
    assert main(["diff", "grpo", "dapo"]) == 0
    assert capsys.readouterr().out.startswith("group_size: 64 -> 16\n")
    assert main(["methods"]) == 0 and main(["show", "gspo"]) == 0
    assert "arXiv:2507.18071" in capsys.readouterr().out
    path = tmp_path / "a.toml"
    path.write_text(
        "method = { base = 'gspo', objective.surrogate = { low = 0.05, high = 0.05 } }\nsampling.max_tokens = 40"
    )
    assert main(["check", str(path)]) == 0
    machine, plan, last = capsys.readouterr().out.splitlines()
    assert machine.startswith("machine: ")
    assert plan.startswith("plan: ") and last == f"{path}: ok"
    assert main(["check", str(path), "--prompts", "17"]) == 2
    assert main(["check", str(path), "--task", "none.jsonl", "--verifier", "exact"]) == 3
    assert main(["show", "gsop"]) == 2
    output = capsys.readouterr()
    assert output.err == "error: 'gsop' is neither a method nor a file\n  do:   did you mean gspo?\n"


# Errors


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Usage("no", evidence="this", fix="that"), 2, "error: no\n  seen: this\n  do:   that\n"),
        (Storage("full"), 6, "error: full\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (RuntimeError("odd"), 1, "RuntimeError: odd\nthis is a bug in groupwise"),
    ],
)
def test_errors_become_exit_codes(monkeypatch, capsys, error, code, text):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("groupwise.commands.show_and_diff.show", fail)
    assert main(["show", "x"]) == code
    err = capsys.readouterr().err
    assert text in err
    assert ("Traceback" in err) == (code == 1)


def test_a_closed_pipe_prints_no_traceback():
    script = "import sys; from groupwise.__main__ import main; sys.exit(main(['methods']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
