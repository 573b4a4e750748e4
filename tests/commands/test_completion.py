"""Completion scripts, and runs named by their stem."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands.completion import SHELLS, completion_script
from groupwise.commands.parsing import parser
from groupwise.runs.find_run import newest_run

BASH = shutil.which("bash")


def commands():
    return parser()[0].parse_args(["completion", "bash"]).commands


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["groupwise", "comp"], {"compare", "completion"}),
        (["groupwise", "train", "--machine.dev"], {"--machine.device"}),
        (["groupwise", "train", "--stop"], {"--stop-after"}),
        (["groupwise", "train", "--method", "gspo"], {"gspo", "gspo_token"}),
        (["groupwise", "show", "dap"], {"dapo"}),
        (["groupwise", "help", "save."], {"save.every", "save.keep"}),
        (["groupwise", "report", "a_f"], {"a_file"}),
    ],
)
def test_bash_completes(tmp_path: Path, words: list[str], expected: set[str]):
    (tmp_path / "a_file").touch()
    script = f"""{completion_script("bash", commands())}
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _groupwise; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([BASH or "", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert expected <= set(done.stdout.split()) and done.stderr == ""
    assert all(line.startswith(words[-1]) for line in done.stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_imports_no_torch(shell: str):
    code = "import sys; from groupwise.__main__ import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "completion", shell], capture_output=True, text=True, check=True)
    *script, loaded = done.stdout.splitlines()
    assert loaded == "False" and all(name in "\n".join(script) for name in commands())


def test_methods_import_no_torch():
    code = "import sys; from groupwise.__main__ import main; main(['methods']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False" and "gspo" in done.stdout


def test_a_stem_is_the_newest_run(home: Path):
    names = ("first-20260101-000000", "first-20260102-000000", "first-20260102-000000-10", "first-20260102-000000-9",
             "first-b-20270101-000000", "first-20280101-000000")  # fmt: skip
    for name in names:
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "recipe.toml").touch()
    (home / "runs" / names[-1] / "recipe.toml").unlink()  # empty: it is no run
    assert newest_run("first") == newest_run("runs/first") == f"runs/{names[2]}"
    assert newest_run("first-b") == f"runs/{names[4]}"
    assert newest_run("fir") == "fir" and newest_run("other/first") == "other/first" and newest_run("..") == ".."
    assert newest_run(f"runs/{names[0]}") == f"runs/{names[0]}"
    (home / "first").mkdir()
    assert newest_run("first") == "first"


def test_commands_take_stems(home: Path, capsys: pytest.CaptureFixture[str]):
    run = home / "runs" / "gspo-20260101-000000"
    run.mkdir(parents=True)
    (run / "recipe.toml").write_text('method = "gspo"\nseed = 7\n')
    assert main(["report", "gspo"]) == 0 and (run / "report.html").is_file()
    assert main(["show", "runs/gspo"]) == 0 and "seed = 7" in capsys.readouterr().out
    assert main(["show", "gspo"]) == 0 and "Group Sequence" in capsys.readouterr().out  # the method
