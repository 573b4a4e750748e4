"""`groupwise plan`: its text, JSON and image, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.toml import DEFAULT
from groupwise.models import DecoderShape, find_model
from groupwise.planning.cost_model import TokenLengths
from groupwise.planning.cpu_run_duration import measured_rates, run_duration
from groupwise.planning.device_splits import try_placement
from groupwise.planning.gpu_cards import CARDS, named_machines
from groupwise.planning.machines import PlannedMachines, on_machines
from groupwise.planning.plan_calibration import ONE
from groupwise.planning.read_model_shape import planned_shape
from groupwise.planning.this_machine import this_machine
from tests.pretended_gpu import NAME, pretended_gpu

LAPTOP = """
name = "core"
device_count = 1
memory_gib = 8.0
device_type = "cpu"
tflops = 0.05
memory_bandwidth_gb_s = 10.0
rates_source = "assumed"
"""
CLUSTER = LAPTOP.replace("device_count = 1", "device_count = 4\nlink_bandwidth_gb_s = 1.0")


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


def test_a_plan_without_machines_is_for_this_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its seconds are those of the line that `check` prints, if all answers have the largest length."""
    assert main(["plan", "--machine.device", "cpu", "--machine.dtype", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 x this machine (1 thread), ") and "rates: measured now: " in lines[0]
    recipe = on_machines(read_recipe(DEFAULT), PlannedMachines(
        name="x", device_count=1, memory_gib=1, tflops=1, memory_bandwidth_gb_s=1, device_type="cpu", rates_source="x",
    ))  # fmt: skip
    shape = planned_shape(find_model("calculator"))
    machines = this_machine(recipe, shape, lambda: 12)
    longest = TokenLengths(prompt_tokens=12, answer_lengths=(recipe.sampling.max_tokens,))
    trial = try_placement(ONE, 0, recipe, shape, machines, longest)
    rates = measured_rates(recipe.machine.dtype, recipe.machine.threads)
    assert isinstance(shape, DecoderShape)
    assert trial.sampling() + trial.learning == pytest.approx(
        run_duration(recipe, shape, 12, 0, rates).iteration_seconds
    )


def test_a_card_has_published_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--machines", "2xA100"]) == 0
    first = capsys.readouterr().out.partition("\n")[0]
    assert first.startswith("2 x A100 SXM 80GB, 74.5 GiB each; rates: 40% of 312 TFLOPS, 75% of 2,039 GB/s")
    assert "counted, not measured" in first
    names = {"NVIDIA A100-SXM4-80GB": "a100", "NVIDIA H100 80GB HBM3": "h100", "Tesla T4": "t4", "4090": "rtx4090",
             "NVIDIA GeForce RTX 3090": "rtx3090", "RTX A6000": "a6000", "a100-40gb": "a100-40gb",
             "H200": "h200"}  # fmt: skip
    for name, key in names.items():
        assert named_machines(name) == CARDS[key].machines(1)
    assert "float16" in named_machines("t4").rates_source
    hosts = named_machines("2 x 4xa100")
    assert (hosts.host_count, hosts.device_count, hosts.network_bandwidth_gb_s) == (2, 4, 4 * 200 / 8 / 2)
    assert "50% of a port of 200 Gb/s for each card" in hosts.rates_source


def test_a_gpu_of_this_machine_is_planned_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The branch `this_card`, on a pretended GPU of 80 GiB."""
    words = ["plan", "--machine.device", "cuda", "--machine.dtype", "bfloat16"]
    with pretended_gpu():
        assert main(words) == 2
        error = capsys.readouterr().err
        assert f"the rates of {NAME} are not known" in error and "--machines FILE.toml" in error
    monkeypatch.setattr("tests.pretended_gpu.NAME", "NVIDIA H100 80GB HBM3")
    with pretended_gpu():
        assert main(words) == 0
        first = capsys.readouterr().out.partition("\n")[0]
    assert first.startswith("1 x this machine's H100 SXM, 80 GiB each; rates: 40% of 989 TFLOPS, 75% of 3,350 GB/s")


def test_several_machines_are_a_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.toml").write_text(LAPTOP.replace("8.0", "0.33"))
    assert main(["plan", "--machines", "rtx4090, 8xh100,small.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("1 x RTX 4090") and lines[2].startswith("8 x H100 SXM")
    assert "does not fit; fits with --" in lines[3]
    assert main(["plan", "--machines", "small.toml,small.toml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["core"]["fits"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machines", "b1000"], "the cards are a10, a40, a100"),
        (["--machine", "a100"], "write --machines a100"),
        (["--machines", "rtx4091"], "did you mean rtx4090?"),
        (["--machines", "0xa100"], "a number of devices from 1"),
        (["--machines", "0x8xa100"], "a number of devices from 1"),
        (["--machines", "2x8xrtx4090"], "host_count and network_bandwidth_gb_s"),
        (["--machines", "a100,t4", "--svg", "plan.svg"], "name one machine"),
        (["--machines", "none.toml"], "none.toml cannot be read"),
        (["--machines", "core.toml", "--promts", "3"], "did you mean --prompts?"),
        (["--machines", "core.toml", "--svg", "none/plan.svg"], "none/plan.svg cannot be written"),
        (["--machines", "core.toml", "--model", "elsewhere"], "there is no model at elsewhere"),
        (["--machine.device", "cuda:x"], "'cuda:x' is not a device"),
    ],
)
def test_errors_have_a_fix(machines: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) in (2, 3, 6)
    error = capsys.readouterr().err
    assert message in error and "  do:   " in error


@pytest.mark.parametrize("words", [["--machines", "cluster.toml"], ["--machines", "rtx4090,8xh100"]])
def test_a_plan_fits_a_terminal_of_80_columns(
    words: list[str], machines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 0
    whole = capsys.readouterr().out
    for module in ("terminal_tables", "plan"):
        monkeypatch.setattr(f"groupwise.commands.{module}.terminal_width", lambda out, otherwise: 80)
    assert main(["plan", *words]) == 0
    cut = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 80 >= max(map(len, cut.splitlines()))
    assert sorted({*whole.split()}) == sorted({*cut.split()})  # nothing is left out


SMS = {"a10": (72, 1024, 1.695), "a40": (84, 1024, 1.74), "a6000": (84, 1024, 1.8), "rtx3090": (82, 512, 1.695),
       "rtx4090": (128, 512, 2.52), "rtx5090": (170, 512, 2.407), "t4": (40, 1024, 1.59),
       "v100": (80, 1024, 1.53)}  # fmt: skip
"""Multiprocessors, matrix operations of each per clock with float32 sums, and the boost clock in GHz."""


@pytest.mark.parametrize("name", SMS)
def test_the_operations_of_a_card_are_those_of_its_multiprocessors(name: str) -> None:
    number, operations, clock = SMS[name]
    assert CARDS[name].bfloat16_tflops == pytest.approx(number * operations * clock / 1000, rel=0.005)
