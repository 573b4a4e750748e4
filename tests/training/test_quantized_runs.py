"""Runs on weights in 4 bits: they learn, resume to the same bits, and merge into a plain model; what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import groupwise as gw
from groupwise.__main__ import main
from groupwise.config.recipe import Machine
from groupwise.config.recipe_toml import read_with_problems
from groupwise.core import MissingRequirement
from groupwise.learner import AdamW
from groupwise.models import Lora, find_model, fingerprint, load_bitsandbytes, quantized_linear, read_model
from tests.checks import check
from tests.commands.test_bad_input import SMALL
from tests.faults.kill_points import killed_ends_as, undisturbed
from tests.faults.small_runs import ADAPTER
from tests.faults.test_run_kills_by_recipe import checkpoints_hold_adapters_alone
from tests.models.test_nf4 import store_in_4_bits
from tests.training.test_adapter_runs import LORA, accuracy
from tests.training.test_stored_runs import PAIRS

pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
pytestmark = [pytest.mark.usefixtures("home", "bitsandbytes")]
NF4 = [*LORA, "--machine.quantization", "nf4"]


def trained(*words: str) -> Path:
    """A run of one iteration."""
    before = set(Path("runs").glob("*"))
    assert main(["train", *SMALL, "--method.group_size", "8", *words]) == 0
    (run,) = set(Path("runs").glob("*")) - before
    return run


def test_a_run_merges_into_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*NF4)
    assert 'quantization = "nf4"' in (run / "recipe.toml").read_text()
    output = json.loads((run / "run.json").read_text())
    assert output["adapter"] == (
        "2,304 trained weights, 223,520 frozen weights, in 4 bits but for embedding, head and norms"
    )
    assert output["base_sha256"] == fingerprint(find_model("calculator"))
    capsys.readouterr()
    assert main(["eval", str(run), "--samples", "1", "--sampling.max_tokens", "48"]) == 0
    of_run = accuracy(capsys)
    assert main(["merge", str(run), "merged"]) == 0
    base, merged = (load_file(Path(d) / "model.safetensors") for d in (find_model("calculator"), "merged"))
    assert {name: x.dtype for name, x in merged.items()} == {name: x.dtype for name, x in base.items()}
    moved = {name.rpartition(".")[0].rpartition(".")[2] for name in base if not torch.equal(base[name], merged[name])}
    assert moved == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    capsys.readouterr()
    words = ["--problems", "4", "--samples", "1", "--sampling.max_tokens", "48"]
    assert main(["eval", "merged", *words]) == 0 and accuracy(capsys) == of_run


def test_training_continues_from_an_adapter_and_from_a_model_that_stores_4_bits(home: Path) -> None:
    run = trained("--model", str(find_model("calculator")), *NF4)
    again = trained("--model", str(run / "model"), "--optimizer.lr", "0.002")
    stored = store_in_4_bits(find_model("calculator"), home / "stored", double=False)
    direct = trained("--model", str(stored), *LORA)
    first, second, third = (load_file(r / "model" / "adapter_model.safetensors") for r in (run, again, direct))
    assert first.keys() == second.keys() and not all(torch.equal(first[n], second[n]) for n in first)
    assert all(torch.equal(first[n], third[n]) for n in first), "quantised at load, or as it is stored"
    assert "4 bits" in json.loads((again / "run.json").read_text())["adapter"]
    assert json.loads((direct / "run.json").read_text())["base_sha256"] == fingerprint(stored)


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe = replace(ADAPTER, machine=Machine(dtype="bfloat16", quantization="nf4"), iterations=2)
    straight = undisturbed(recipe, tmp_path)
    killed_ends_as(straight, tmp_path / "killed", ("after step", 3))
    checkpoints_hold_adapters_alone(tmp_path / "killed")
    adapter = read_model(tmp_path / "killed" / "model", dtype=torch.bfloat16)
    assert sum(weight.dtype == torch.uint8 for weight in adapter.parameters()) == 14


REFUSED = {
    "": ("training without an adapter", "--lora.rank 16"),
    "--machine.compile true": ("machine.compile", "leave --machine.compile out"),
    "--engine.kind Served": ("native engines in other processes", "--engine.kind Vllm"),
    "--cluster.ranks 2 --cluster.shard full": ("this run cannot be sharded", "--cluster.shard none"),
    "--model rings --task rings --method flow_grpo": ("does not fit rings: it is a flow model", "Qwen2, Qwen3"),
    "--machine.quantization int8": ("'int8' is not one of nf4", "groupwise help FIELD"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_go_with_4_bits_is_refused_with_the_line_to_write(words: str) -> None:
    given = words.split()
    options = [*zip(NF4[::2], NF4[1::2]), *zip(given[::2], given[1::2])] if given else [tuple(NF4[-2:])]
    errors = check(None, [(name.removeprefix("--"), value) for name, value in options])
    what, fix = REFUSED[words]
    assert any(what in error.what and fix in error.fix for error in errors), errors


def test_check_names_the_missing_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = store_in_4_bits(find_model("calculator"), home / "stored", double=False)

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(quantized_linear, "importlib", SimpleNamespace(import_module=missing))
    load_bitsandbytes.cache_clear()
    for model, options in ((str(stored), LORA), ("calculator", NF4)):
        fields = [("model", model), *((n.removeprefix("--"), value) for n, value in zip(options[::2], options[1::2]))]
        (error,) = check(None, fields)
        assert isinstance(error, MissingRequirement) and "groupwise[quantization]" in error.fix


def test_the_option_of_other_libraries_has_its_line() -> None:
    for option in ("load_in_4bit = true", "bnb_4bit_quant_type = 'nf4'"):
        _, problems = read_with_problems(f"method = 'grpo'\n{option}")
        assert 'machine.quantization = "nf4"' in problems[0].fix


def test_a_run_learns() -> None:
    run = gw.train(
        method=gw.dpo(), data=PAIRS, iterations=8, prompts=8, lora=Lora(rank=8), machine=Machine(quantization="nf4"),
        optimizer=AdamW(lr=3e-3),
    )  # fmt: skip
    assert run.metrics["eval/loss"][0] == pytest.approx(math.log(2), abs=1e-6)
    assert run.metrics["eval/loss"][8] < 0.1


def test_a_model_that_stores_4_bits_is_planned_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = store_in_4_bits(find_model("calculator"), home / "stored", double=True)
    parts = []
    for model in (str(stored), "calculator"):
        assert main(["plan", "--model", model, *LORA, "--json"]) == 0
        parts.append(json.loads(capsys.readouterr().out)["memory"][0]["parts"])
    matrices = sum(w.numel() for w in load_file(stored / "model.safetensors").values() if w.dtype == torch.uint8)
    assert parts[0]["weights"] < 0.2 * parts[1]["weights"] and matrices < parts[0]["weights"]
    assert "dequantised" in parts[0] and "dequantised" not in parts[1]
