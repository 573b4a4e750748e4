"""Tests of models with remote code: refused without the trust flag, and usable like any other model with it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupwise.__main__ import main
from groupwise.core import BadData
from groupwise.models import (
    Lora,
    attach,
    fingerprint,
    merge,
    outline,
    read_model,
    remote_code,
    write_adapter,
    write_model,
)
from groupwise.models.decoder.transformers_model import TransformersBackbone
from groupwise.training.evaluation_protocol import model_hash
from tests.commands.test_bad_input import SMALL, error_of
from tests.models.directories import characters
from tests.models.plain import SMALL as SIZES
from tests.models.plain import ours, theirs, written
from tests.models.test_checkpoint import change

TRUST = "--trust-remote-code"
ACTIVATION = "import torch\n\n\ndef squared(x):\n    return torch.relu(x) ** 2\n"
MODEL = """
import os
from pathlib import Path
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from .activation_x import squared

with Path(os.environ["SEEN"]).open("a") as seen:
    seen.write("ran ")


class XConfig(LlamaConfig):
    model_type = "x"


class Squared(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.narrow(squared(self.widen(x)))


class XForCausalLM(LlamaForCausalLM):
    config_class = XConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Squared(config.hidden_size, config.intermediate_size)
        self.post_init()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder from which remote code is copied and imported. Code that runs writes to the file `seen`."""
    import transformers.dynamic_module_utils

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.fixture
def model(home: Path) -> Path:
    """A published model directory: configuration, weights, tokenizer, and two Python files."""
    path = home / "x"
    characters().save(path)
    (path / "modeling_x.py").write_text(MODEL)
    (path / "activation_x.py").write_text(ACTIVATION)
    maps = {"AutoConfig": "modeling_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    output = {**SIZES, "model_type": "x", "architectures": ["XForCausalLM"], "auto_map": maps, "dtype": "float32"}
    (path / "config.json").write_text(json.dumps(output))
    draws = torch.Generator().manual_seed(1)
    names = {name: p.shape for name, p in outline(path, trust_remote_code=True).named_parameters()}
    tensors = {name: torch.randn(shape, generator=draws) * 0.2 for name, shape in names.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (home / "seen").unlink()
    return path


def plain(path: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(
        path, trust_remote_code=True, local_files_only=True, attn_implementation="eager"
    ).eval()


def test_by_default_no_remote_code_runs(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("train", "--model", "x", *SMALL), ("eval", "x"), ("sample", "x", "1+1=")):
        output = error_of(capsys, 3, *command)
        assert "brings its own code" in output and "modeling_x.XForCausalLM" in output
        assert TRUST in output and "executed" in output
    Path("r.toml").write_text('model = "x"\nmethod = "grpo"\n')
    assert main(["check", "r.toml"]) == 3 and TRUST in capsys.readouterr().out
    for look in (read_model, outline):
        with pytest.raises(BadData, match="brings its own code"):
            look(model)
    assert not Path("seen").exists()


def test_a_trusted_model_works_like_any_other(model: Path, tmp_path: Path) -> None:
    read, batch = read_model(model, trust_remote_code=True), written()
    assert isinstance(read, TransformersBackbone) and type(read.causal).__name__ == "XForCausalLM"
    (logp, by), (expected, own) = ours(read, batch), theirs(plain(model), batch)
    assert torch.allclose(logp, expected, rtol=0, atol=2e-5) and expected.std() > 0.1
    assert by.keys() == own.keys() and any("widen" in name for name in by)
    assert all((g - own[name]).norm() <= 1e-4 * own[name].norm() + 1e-5 for name, g in by.items())
    write_model(read, tmp_path / "again", tokenizer=characters())
    for name in ("modeling_x.py", "activation_x.py"):
        assert (tmp_path / "again" / name).read_text() == (model / name).read_text()
    assert torch.equal(theirs(plain(tmp_path / "again"), batch)[0], expected)


def test_every_command_needs_the_trust_flag(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def grade(prompt, answer, gold):\n    return len(answer) % 2 == 0\n")
    mine = ["--verifier", "mine:grade", "--use", "mine.py", "--optimizer.lr", "0.01"]
    assert main(["train", "--model", "x", *SMALL, *mine, TRUST]) == 0
    assert f"{TRUST}: Python files in the model's directory are executed" in capsys.readouterr().out
    (run,) = Path("runs").iterdir()
    output = json.loads((run / "run.json").read_text())
    assert sorted(output["trust_remote_code"]) == ["activation_x.py", "modeling_x.py"]
    assert TRUST in output["command"] and "trust" not in (run / "recipe.toml").read_text()
    for words in (["resume", str(run), "--use", "mine.py"], ["eval", str(run), "--use", "mine.py"]):
        Path("seen").unlink(missing_ok=True)
        assert main(words) == 3 and TRUST in capsys.readouterr().err
        assert not Path("seen").exists()
        assert main([*words, TRUST]) == 0
    assert main(["sample", str(run), "7*5+8=", "--sampling.max_tokens", "4", TRUST]) == 0
    before = model_hash(model)
    (model / "activation_x.py").write_text(ACTIVATION + "# another word\n")
    assert model_hash(model) != before
    capsys.readouterr()
    assert main(["resume", str(run), "--use", "mine.py", TRUST]) == 3
    output = capsys.readouterr().err
    assert "differs from" in output and "activation_x.py" in output


@pytest.mark.parametrize("text", ("trust_remote_code = true\n", "[engine]\ntrust_remote_code = true\n"))
def test_a_recipe_cannot_trust_remote_code(text: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.toml").write_text(f'model = "x"\nmethod = "grpo"\n{text}')
    output = error_of(capsys, 2, "train", "r.toml")
    assert "trust_remote_code is not a field" in output and f"command-line option {TRUST}" in output
    for command in (["check", "r.toml"], ["check", "r.toml", TRUST]):
        assert main(command) == 2 and "trust_remote_code is not a field" in capsys.readouterr().out
    output = error_of(capsys, 2, "train", "--model", "x", "--trust_remote_code", "true")
    assert f"command-line option {TRUST}" in output
    assert not Path("seen").exists()


def test_code_in_another_repository_is_not_fetched(model: Path) -> None:
    change(model, auto_map={"AutoModelForCausalLM": "somebody/else--modeling_x.XForCausalLM"})
    with pytest.raises(BadData, match="has its code in another repository"):
        read_model(model, trust_remote_code=True)
    assert not Path("seen").exists()


def test_an_error_in_remote_code_is_reported(model: Path) -> None:
    (model / "activation_x.py").write_text("raise RuntimeError('no such luck')\n")
    with pytest.raises(BadData) as error:
        read_model(model, trust_remote_code=True)
    assert "no such luck" in error.value.evidence and error.value.fix


def test_an_adapter_on_remote_code(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
    read = read_model(model, trust_remote_code=True)
    attach(read, Lora(rank=2, target_modules=("q_proj", "widen")), seed=0)
    write_adapter(read, tmp_path / "adapter", base=str(model), base_sha256=fingerprint(model))
    assert remote_code(tmp_path / "adapter") == remote_code(model) and remote_code(model)  # as a run records it
    with pytest.raises(BadData, match="brings its own code"):
        read_model(tmp_path / "adapter")
    again = read_model(tmp_path / "adapter", trust_remote_code=True)
    assert torch.equal(ours(again, written())[0], ours(read, written())[0])
    merge(again)
    write_model(again, tmp_path / "merged", tokenizer=characters())
    names = load_file(model / "model.safetensors").keys()
    assert load_file(tmp_path / "merged" / "model.safetensors").keys() == names
