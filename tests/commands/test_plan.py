"""`groupwise plan`: its text, JSON and image, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main

LAPTOP = """
name = "core"
count = 1
memory_gib = 8.0
device = "cpu"
tflops = 0.05
memory_gb_s = 10.0
rates = "assumed"
"""
CLUSTER = LAPTOP.replace("count = 1", "count = 4\nlink_gb_s = 1.0")


@pytest.fixture
def machines(home: Path) -> str:
    Path("core.toml").write_text(LAPTOP)
    Path("cluster.toml").write_text(CLUSTER)
    return "core.toml"


def test_the_packaged_recipe_on_one_core(machines: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--machines", machines]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "1 x core, 8 GiB each; rates: assumed\n223,520 weights in float32; 256 answers per iteration\n"
    )
    assert "prompts of 12 tokens" in text  # the longest of the task, since the file names none
    assert "best: staleness 0, 1 do both; each sample has one version" in text


def test_the_seconds_of_a_measured_run(machines: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"iterations": 2, "prompts": 4, "method.group_size": 4, "evaluate.problems": 2}
    run = gw.train(out="runs", **settings).directory
    capsys.readouterr()
    assert main(["plan", "--machines", machines, "--rates", str(run)]) == 0
    first = capsys.readouterr().out.partition("\n")[0]
    assert first.startswith(f"1 x core, 8 GiB each; rates: assumed; seconds of {run.name}: sampling x "), first


def test_a_plan_as_json_with_an_image(machines: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--machines", "cluster.toml", "--json", "--svg", "plan.svg", "--prompts", "8"]
    assert main([*words, "--method.group_size", "4"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["fits"] and planned["weights"] == 223_520 and planned["changes"] == {}
    assert [trial["max_staleness"] for trial in planned["trials"]] == [0, 1, 2, 4]
    assert {m["process"] for m in planned["memory"]} == {"both", "learner", "engine"}
    assert Path("plan.svg").read_text().startswith("<svg")


def test_a_run_that_does_not_fit_has_exit_code_2(machines: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.toml").write_text(LAPTOP.replace("8.0", "0.33"))
    assert main(["plan", "--machines", "small.toml"]) == 2
    text = capsys.readouterr().out
    assert "it does not fit: 1 do both with 0.4 GiB of 0.33 GiB" in text
    assert "nearest recipe that fits: --" in text
    command = text.partition("nearest recipe that fits: ")[2].splitlines()[0].split()
    assert main(["plan", "--machines", "small.toml", *command]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "add --machines FILE.toml"),
        (["--machines", "none.toml"], "none.toml cannot be read"),
        (["--machines", "core.toml", "--promts", "3"], "did you mean --prompts?"),
        (["--machines", "core.toml", "--svg", "none/plan.svg"], "none/plan.svg cannot be written"),
        (["--machines", "core.toml", "--model", "elsewhere"], "there is no model at elsewhere"),
    ],
)
def test_errors_have_a_fix(machines: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) in (2, 3, 6)
    error = capsys.readouterr().err
    assert message in error and "  do:   " in error
