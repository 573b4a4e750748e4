"""A grader or an environment that fails during a run: the error names it, and a mended one goes on."""

import json
from pathlib import Path

import pytest

from groupwise.__main__ import main

SMALL = ["--prompts", "2", "--method.group_size", "2", "--method.minibatches", "1", "--iterations", "2"]
SMALL += ["--sampling.max_tokens", "8", "--evaluate.every", "0", "--evaluate.problems", "2", "--save.every", "1"]
BROKEN = """
from helper import MADE_UP

def grade(answer):
    if answer in MADE_UP: return 0.0
    return {}["boom"]
"""
MENDED = "def grade(answer):\n    return len(answer) / 8\n"


def test_a_run_goes_on_with_a_mended_grader_and_records_both_hashes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "v.py").write_text(BROKEN)
    (home / "helper.py").write_text("MADE_UP = ('a made-up answer',)")
    assert main(["train", "--out", ".", "--name", "run", "--verifier", "v:grade", "--use", "v.py", *SMALL]) == 5
    error = capsys.readouterr().err
    assert "v.py:6 in grade: KeyError: 'boom'" in error and "correct the verifier" in error
    (run,) = home.glob("run*/")
    assert f"continue from the last checkpoint: groupwise resume {run.name} --use v.py" in error
    old = json.loads((run / "run.json").read_text())["use"]
    assert sorted(old) == ["v", "v/helper.py"]

    (home / "v.py").write_text(MENDED)
    assert main(["resume", run.name, "--use", "v.py"]) == 3
    assert "add --changed to the command" in capsys.readouterr().err
    assert main(["resume", run.name, "--use", "v.py", "--changed"]) == 0
    about = json.loads((run / "run.json").read_text())
    (change,) = about["changes"]
    assert [line.partition(":")[0] for line in change["changes"]] == ["use.v", "use.v/helper.py"]
    assert old["v"][:12] in change["changes"][0] and about["use"]["v"][:12] in change["changes"][0]
    assert about["use"].keys() == {"v"}
    assert main(["resume", run.name, "--use", "v.py"]) == 0  # the new file is now the run's


def test_an_environment_that_fails_is_named_in_the_fix(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "e.py").write_text(
        "class World:\n    def reset(self, prompt, random): return None\n"
        "    def step(self, message):\n        raise KeyError('door')\n"
    )
    turns = ["--environment", "e:World", "--method.strategy", "Turns", "--evaluate.strategy", "Turns"]
    assert main(["train", "--out", ".", "--use", "e.py", *turns, *SMALL]) == 5
    error = capsys.readouterr().err
    assert "e.py:4 in step: KeyError: 'door'" in error and "correct the environment" in error
