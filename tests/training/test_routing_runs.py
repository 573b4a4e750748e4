"""Tests of runs that train a mixture of experts, from the command line, and of their errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.models import experts_of, outline
from tests.commands.test_bad_input import error_of
from tests.models.directories import directory
from tests.models.mixtures import trainable

SMALL = """
prompts = 4
iterations = 1
sampling.max_tokens = 10
evaluate = { every = 0, problems = 4 }
optimizer.lr = 0.02
method = { base = "gspo", group_size = 4, minibatches = 2 }
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "digits.py").write_text("def grade(prompt, answer, gold):\n    return '1' in answer\n")
    return tmp_path


OWN = ["--verifier", "digits:grade", "--use", "digits.py"]


def trained(*words: str) -> tuple[Path, list[dict[str, Any]]]:
    before = set(Path("runs").glob("*"))
    assert main(["train", "small.toml", "--model", "tiny", *OWN, *words]) == 0
    (run,) = set(Path("runs").glob("*")) - before
    return run, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]


def test_every_kind_of_router_replay_trains(home: Path) -> None:
    trainable(home / "tiny")
    runs = {replay: trained("--method.router_replay", replay) for replay in ("none", "learner", "engine")}
    for run, lines in runs.values():
        assert all(0 < line["routing/changed"] < 1 for line in lines)
        assert all(line["sampling/sampling_logp_difference/max"] < 1e-4 for line in lines)
        assert experts_of(outline(run / "model")) == experts_of(outline(home / "tiny"))
    weights = [load_file(run / "model" / "model.safetensors") for run, _ in runs.values()]
    for one, other in ((0, 1), (0, 2)):  # replay is another method
        assert any(not torch.equal(x, weights[other][name]) for name, x in weights[one].items())
    assert 'replay = "engine"' in (runs["engine"][0] / "recipe.toml").read_text()
    assert "<th scope=row>routing/changed</th>" in (runs["engine"][0] / "report.html").read_text()
    shards = {replay: load_file(run / "samples" / "000001.safetensors") for replay, (run, _) in runs.items()}
    assert "routes" not in shards["none"] and "routes" not in shards["learner"]
    routes, tokens = shards["engine"]["routes"], shards["engine"]["tokens"]
    assert routes.dtype == torch.int16 and routes.shape == (len(tokens), 2 * 2) and 0 <= routes.min() < routes.max() < 8
    assert main(["eval", str(runs["engine"][0]), "--problems", "4", *OWN]) == 0


def balance(coefficient: float) -> list[str]:
    return ["--method.auxiliary", f'[{{ kind = "RouterBalance", coefficient = {coefficient} }}]']


def test_the_balance_loss_evens_out_the_load(home: Path) -> None:
    trainable(home / "tiny")
    _, lines = trained(*balance(1), "--iterations", "3", "--optimizer.lr", "0.01")
    assert 2 <= lines[-1]["routing/balance"] < lines[0]["routing/balance"] - 0.02
    _, plain = trained()
    assert "routing/balance" not in plain[0]


def test_a_dense_model_is_refused_before_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory(home / "dense")
    for words in (["--method.router_replay", "learner"], balance(0.1)):
        output = error_of(capsys, 2, "train", "small.toml", *words)  # the packaged model
        assert "need a mixture of experts" in output and "leave method.router_replay and RouterBalance out" in output
        assert main(["check", "small.toml", "--model", "dense", *words]) == 2
        assert "need a mixture of experts" in capsys.readouterr().out
    assert "nothing to replay" in error_of(
        capsys, 2, "train", "small.toml", "--method.router_replay", "learner", "--method.old_logprobs", "engine"
    )


def test_diff_shows_the_replay(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    (home / "r3.toml").write_text(SMALL.replace("minibatches = 2 }", 'minibatches = 2, router_replay = "engine" }'))
    assert main(["diff", "small.toml", "r3.toml"]) == 0
    assert capsys.readouterr().out.strip() == "method.router_replay: none -> engine"
