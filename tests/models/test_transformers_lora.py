"""Adapters on models of transformers: exchange with peft, gradients, merging, errors."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from groupwise.core import BadData, Usage
from groupwise.data import Batch
from groupwise.learner import forward
from groupwise.models import Lora, attach, fingerprint, merge, outline, read_model, write_adapter, write_model
from groupwise.models.decoder.transformers_model import TransformersBackbone
from groupwise.models.lora import check_targets
from tests.models.directories import characters
from tests.models.plain import load, made, weighed, written
from tests.models.plain import theirs as plainly
from tests.models.test_families import BACKBONES
from tests.models.test_lora import taught

peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
TARGETS: dict[str, tuple[str, ...]] = {
    "gemma2": ("q_proj", "o_proj", "down_proj"),
    "gpt2": ("c_attn", "h.1.attn.c_proj", "c_fc"),
    "phi": ("q_proj", "dense", "fc1"),
    "qwen3 moe": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "deepseek": ("q_a_proj", "kv_b_proj", "o_proj"),
}


def base(home: Path, name: str) -> Path:
    kind, changes = BACKBONES[name]
    made(home / "base", kind, **changes)
    return home / "base"


def adapter(home: Path, name: str, dtype: torch.dtype = torch.float32) -> tuple[TransformersBackbone, Path, Path]:
    """A random model with a non-zero adapter, its directory, and the adapter's directory."""
    path = base(home, name)
    model = read_model(path, dtype=dtype)
    assert isinstance(model, TransformersBackbone)
    attach(model, Lora(rank=3, alpha=12.0, target_modules=TARGETS[name]), seed=1)
    taught(model)
    write_adapter(model, home / "adapter", base=str(path), base_sha256=fingerprint(path))
    return model, path, home / "adapter"


def logprobs_of(model: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        return forward(model, batch, temperature=0.7)[0]


@pytest.mark.parametrize("name", TARGETS)
def test_peft_loads_the_adapters_that_we_write(name: str, tmp_path: Path) -> None:
    """Log-probs and every gradient equal those of peft on the plain forward."""
    model, path, home = adapter(tmp_path, name, torch.float64)
    batch, wrapped = written(), peft.PeftModel.from_pretrained(load(path, torch.float64), home, is_trainable=True)
    expected, by = plainly(wrapped.eval(), batch)
    logp = forward(model, batch, temperature=0.7)[0]
    weighed(logp).backward()
    by_name = {f"base_model.model.{n.removeprefix('causal.')}": w.grad for n, w in model.named_parameters()}
    slopes = {name: slope for name, slope in by_name.items() if slope is not None}
    assert slopes and all("lora_" in name for name in slopes)  # only the adapter has a gradient
    assert torch.allclose(logp, expected, rtol=0, atol=2e-5)
    assert (logp - logprobs_of(read_model(path, dtype=torch.float64), batch)).abs().max() > 0.1
    for name, slope in slopes.items():
        assert slope.norm() > 1e-4 and (slope - by[name]).norm() <= 1e-4 * by[name].norm() + 1e-6, name


@pytest.mark.parametrize("name", TARGETS)
def test_a_merged_adapter_gives_the_same_log_probs(name: str, tmp_path: Path) -> None:
    model, path, home = adapter(tmp_path, name)
    batch, again = written(), read_model(home)
    expected = logprobs_of(model, batch)
    assert torch.equal(logprobs_of(again, batch), expected)
    merge(again)
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in read_model(path).named_parameters()}
    assert all(weight.requires_grad for weight in again.parameters())
    assert torch.allclose(logprobs_of(again, batch), expected, rtol=0, atol=2e-5)
    write_model(again, tmp_path / "merged", tokenizer=characters())
    assert torch.allclose(plainly(load(tmp_path / "merged"), batch)[0], expected, rtol=0, atol=2e-5)


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_seed_only(tmp_path: Path) -> None:
    path, batch = base(tmp_path, "gpt2"), written()
    models = [read_model(path) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1)):
        torch.randn(3)
        attach(model, Lora(rank=2, target_modules=("c_attn",)), seed=seed)
    first, same, other = ([w for w in model.parameters() if w.requires_grad] for model in models)
    assert all(map(torch.equal, first, same)) and not all(map(torch.equal, first, other))
    assert torch.equal(logprobs_of(models[0], batch), logprobs_of(read_model(path), batch))


def test_we_load_the_adapters_that_peft_writes(tmp_path: Path) -> None:
    path, batch = base(tmp_path, "gpt2"), written()
    wrapped = peft.get_peft_model(load(path), peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    taught(wrapped)
    wrapped.save_pretrained(tmp_path / "theirs")
    assert torch.allclose(
        logprobs_of(read_model(tmp_path / "theirs"), batch), plainly(wrapped.eval(), batch)[0], atol=2e-5
    )


@pytest.mark.parametrize(
    ("name", "targets", "message", "fix"),
    [
        ("gpt2", ("q_proj",), "no linear layer is called 'q_proj'", "the model has c_attn, c_proj, c_fc"),
        ("gpt2", ("wte",), "'wte' is the head or the embedding", "remove this target"),
        ("gpt2", ("h",), "no linear layer is called 'h'", "c_attn"),
        (
            "qwen3 moe",
            Lora().target_modules,
            "mixture-of-experts blocks",
            "the model has q_proj, k_proj, v_proj, o_proj",
        ),
        ("qwen3 moe", ("experts",), "mixture-of-experts blocks", "q_proj, k_proj, v_proj, o_proj"),
        ("qwen3 moe", ("mlp.gate",), "mixture-of-experts blocks", "q_proj, k_proj, v_proj, o_proj"),
        ("deepseek", ("gate_proj", "up_proj", "down_proj"), "mixture-of-experts blocks", "q_a_proj, q_b_proj"),
    ],
)
def test_unknown_targets_are_refused(
    name: str, targets: tuple[str, ...], message: str, fix: str, tmp_path: Path
) -> None:
    """Detected from the configuration, before weights are read."""
    with pytest.raises(Usage) as error:
        check_targets(outline(base(tmp_path, name)), Lora(target_modules=targets))
    assert message in str(error.value) and fix in error.value.fix


def test_a_target_name_shared_with_another_kind_of_layer_is_refused(tmp_path: Path) -> None:
    odd = nn.ModuleDict({"a": nn.ModuleDict({"x": nn.Linear(2, 2)}), "b": nn.ModuleDict({"x": nn.LayerNorm(2)})})
    with pytest.raises(Usage, match="no linear layer is called 'x'"):
        check_targets(odd, Lora(rank=1, target_modules=("x",)))
    check_targets(odd, Lora(rank=1, target_modules=("a.x",)))


@pytest.mark.parametrize("targets", (["gate_proj", "up_proj", "down_proj"], "all-linear"))
def test_adapters_on_experts_are_refused(targets: object, tmp_path: Path) -> None:
    settings = peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(load(base(tmp_path, "qwen3 moe")), settings)
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(BadData, match="is not a plain LoRA") as error:
        read_model(tmp_path / "theirs")
    assert "target_parameters" in error.value.evidence and "merge" in error.value.fix
    config = tmp_path / "theirs" / "adapter_config.json"
    named = {"target_modules": ["gate_proj", "up_proj", "down_proj"], "target_parameters": None}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))  # the old name, from when experts were layers
    with pytest.raises(BadData, match="is not a plain LoRA"):
        read_model(tmp_path / "theirs")
