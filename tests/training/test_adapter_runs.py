"""Tests of runs that train an adapter, from the command line, and of their errors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.models import find_model
from tests.commands.test_bad_input import SMALL, error_of
from tests.models.directories import directory

pytestmark = pytest.mark.usefixtures("home")

pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
LORA = ["--lora.rank", "2", "--optimizer.lr", "0.002", "--lora.target_modules", '["q_proj", "down_proj"]']


def trained(*words: str) -> Path:
    """A run of one iteration."""
    before = set(Path("runs").glob("*"))
    assert main(["train", *SMALL, "--method.group_size", "8", *words]) == 0
    (run,) = set(Path("runs").glob("*")) - before
    return run


def accuracy(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("greedy", "avg@"))]


def test_an_adapter_run_merges_into_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*LORA)
    output = json.loads((run / "run.json").read_text())
    assert output["adapter"].startswith("2,304 trained weights, 223,520 frozen weights")
    assert output["adapter"] in (run / "report.html").read_text()
    files = ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(p.name for p in (run / "model").iterdir()) == files
    capsys.readouterr()
    assert main(["eval", str(run), "--samples", "1", "--sampling.max_tokens", "48"]) == 0
    of_run = accuracy(capsys)
    assert main(["merge", str(run), "merged"]) == 0 and main(["merge", str(run / "model"), "again"]) == 0
    base, merged = (load_file(Path(d) / "model.safetensors") for d in (find_model("calculator"), "merged"))
    moved = {name for name in base if not torch.equal(base[name], merged[name])}
    assert base.keys() == merged.keys() and len(moved) == 4
    assert all(name.endswith(("q_proj.weight", "down_proj.weight")) for name in moved)
    capsys.readouterr()
    words = ["--problems", "4", "--samples", "1", "--sampling.max_tokens", "48"]
    assert main(["eval", "merged", *words]) == 0
    assert len(of_run) == 2 and accuracy(capsys) == of_run
    assert main(["sample", str(run), "7*5+8="]) == 0


def test_training_continues_from_an_adapter() -> None:
    run = trained(*LORA)
    again = trained("--model", str(run / "model"), "--optimizer.lr", "0.002")
    first, second = (load_file(r / "model" / "adapter_model.safetensors") for r in (run, again))
    assert first.keys() == second.keys() and not all(torch.equal(first[n], second[n]) for n in first)
    assert json.loads((again / "model" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        find_model("calculator")
    )


def test_resume_refuses_another_base(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory(home / "base", vocabulary_size=40)
    (home / "problems.jsonl").write_text("".join(f'{{"prompt": "{a}+1=", "answer": "{a + 1}"}}\n' for a in range(9)))
    run = trained("--model", "base", "--task", "problems.jsonl", "--verifier", "exact", *LORA)
    assert main(["resume", str(run)]) == 0
    directory(home / "base", vocabulary_size=40, rope_theta=3.0)
    assert main(["resume", str(run)]) == 3  # the same weights compute other numbers
    assert "files.config.json: " in capsys.readouterr().err
    assert main(["resume", str(run), "--changed"]) == 0
    directory(home / "base", vocabulary_size=40, rope_theta=3.0, tied_embeddings=True)
    for words in ([], ["--changed"]):
        assert main(["resume", str(run), *words]) == 3
        assert "the weights of base differ from those at the start" in capsys.readouterr().err


def test_what_cannot_be(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words, code, what, fix in (
        (["--lora.rank", "0"], 2, "rank is 0", "such as 16"),
        (["--lora.alpha", "0"], 2, "alpha is 0", "above 0"),
        (["--lora.target_modules", "[]"], 2, "targets is empty", '["q_proj", "v_proj"]'),
        (
            ["--lora.target_modules", "q_prj"],
            2,
            "recipe.lora.target_modules: no linear layer is called 'q_prj'",
            "q_proj, k_proj",
        ),
        (["--lora.target_modules", '["lm_head"]'], 2, "'lm_head' is the head", "remove this target"),
    ):
        output = error_of(capsys, code, "train", *words)
        assert what in output and fix in output, output
    Path("r.toml").write_text('method = "grpo"\n[lora]\ntarget_modules = ["nope"]\n')
    assert main(["check", "r.toml"]) == 2 and "no linear layer is called 'nope'" in capsys.readouterr().out
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    assert "pip install 'groupwise[lora]'" in error_of(capsys, 4, "train", "--lora.rank", "2")


def test_merge_refuses_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*LORA)
    Path("there").mkdir()
    for words, code, what in (
        ([str(run), "there"], 2, "there exists already"),
        (["calculator", "out"], 2, "calculator is not an adapter"),
        (["nowhere", "out"], 3, "there is no model at nowhere"),
    ):
        assert main(["merge", *words]) == code
        assert what in capsys.readouterr().err
    assert not Path("out").exists()


def test_an_adapter_cannot_get_an_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(*LORA)
    assert main(["train", "--model", str(run / "model"), "--lora.rank", "2"]) == 2
    output = capsys.readouterr().err
    assert "is itself an adapter" in output and "groupwise merge" in output


def test_lora_settings_read_back_from_text() -> None:
    plain = 'method = "grpo"\n'
    for more in ("[lora]\n", "[lora]\nrank = 4\ntarget_modules = ['q_proj']\n", "", 'lora = "none"\n'):
        recipe = read_recipe(more + plain if more.startswith("lora =") else plain + more)
        assert read_recipe(write(recipe)) == recipe
        assert (recipe.lora is not None) == more.startswith("[lora]")
    assert read_recipe(plain + "[lora]\n", [("lora", "none")]).lora is None
