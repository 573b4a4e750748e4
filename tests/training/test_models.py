"""Tests of runs on native and transformers models, from the command line, with the same recipe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.learner import AdamW, Learner
from groupwise.models import read_model, write_model
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models.directories import characters
from tests.models.plain import load, made, ours, weighed, written
from tests.models.test_families import rope

SMALL = ["--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "4", "--iterations", "1"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("Mistral", {"sliding_window": 9, **rope("linear", factor=2.0)}),
    "foreign": ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 250}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_from_a_directory_to_a_directory(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, changes = KINDS[name]
    made(home / "made", kind, **changes)
    model = read_model(home / "made")
    assert isinstance(model, TransformersBackbone) == (name == "foreign")
    write_model(model, home / "tiny", tokenizer=characters())
    capsys.readouterr()
    Path("mine.py").write_text("def grade(prompt, answer, gold):\n    return len(answer) % 2 == 0\n")
    mine = [
        "--verifier", "mine:grade", "--use", "mine.py", "--machine.gradient_checkpointing", "true", "--optimizer.lr",
        "0.01",
    ]  # fmt: skip
    assert main(["train", "--model", "tiny", *SMALL, *mine]) == 0
    output = capsys.readouterr()
    assert "done: 1 iteration\n" in output.out and "%|" not in output.err
    (run,) = Path("runs").iterdir()
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["sampling/sampling_logp_difference/max"] < 1e-4
    before, after = (load(path).state_dict() for path in (home / "tiny", run / "model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert main(["eval", str(run), "--samples", "2", "--use", "mine.py"]) == 0


def test_an_adapter_on_a_transformers_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training, evaluation, merging and further training work as with a native model."""
    pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
    monkeypatch.chdir(tmp_path)
    kind, changes = KINDS["foreign"]
    made(tmp_path / "made", kind, **changes)
    write_model(read_model(tmp_path / "made"), tmp_path / "tiny", tokenizer=characters())
    Path("mine.py").write_text("def grade(prompt, answer, gold):\n    return len(answer) % 2 == 0\n")
    mine = [
        "--verifier", "mine:grade", "--use", "mine.py", "--optimizer.lr", "0.01", "--machine.gradient_checkpointing",
        "true",
    ]  # fmt: skip
    lora = ["--lora.rank", "2", "--lora.target_modules", '["c_attn", "c_fc"]']
    capsys.readouterr()
    assert main(["train", "--model", "tiny", "--name", "first", *SMALL, *lora, *mine]) == 0
    run = next(Path("runs").glob("first-*"))
    adapter = json.loads((run / "run.json").read_text())["adapter"]
    assert adapter.startswith("1,152 trained weights, ") and adapter in (run / "report.html").read_text()
    names = {p.name for p in (run / "model").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert main(["merge", str(run), "merged"]) == 0
    before, after = (load(Path(path)).state_dict() for path in ("tiny", "merged"))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert len(moved) == 4 and all("c_attn.weight" in name or "c_fc.weight" in name for name in moved)
    answers = []
    for what in (str(run), "merged"):
        capsys.readouterr()
        assert main(["sample", what, "7*5+8=", "--sampling.max_tokens", "8"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""
    assert main(["train", "--model", str(run / "model"), "--name", "second", *SMALL, *mine]) == 0
    first, second = (
        load_file(next(Path("runs").glob(f"{n}-*")) / "model" / "adapter_model.safetensors")
        for n in ("first", "second")
    )
    assert first.keys() == second.keys() and not all(torch.equal(first[name], x) for name, x in second.items())


def test_a_checkpoint_has_all_weights_of_a_model(tmp_path: Path) -> None:
    kind, changes = KINDS["foreign"]
    made(tmp_path, kind, **changes)
    learner, fresh = (Learner(read_model(tmp_path), optimizer=AdamW(lr=0.1), steps=2) for _ in range(2))
    batch = written()
    weighed(ours_logp := learner.model.head(torch.ones(1, 32))[0]).backward()
    learner.optimizer.step(0.1, 1.0)
    fresh.restore(*learner.state())
    assert torch.equal(ours(fresh.model, batch)[0], ours(learner.model, batch)[0])
    assert not torch.equal(fresh.model.head(torch.ones(1, 32))[0], ours_logp)
