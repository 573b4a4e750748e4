"""Adapters: a fresh one changes nothing; exchange with peft in both directions, merging, refusals."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.core import BadData, Usage
from groupwise.models import (
    Decoder,
    Lora,
    attach,
    fingerprint,
    merge,
    read_model,
    read_tokenizer,
    write_adapter,
    write_model,
)
from groupwise.models.lora import merged_weights
from tests.models.directories import characters, directory, shape
from tests.models.test_transformers import PROMPT, close, load, logits, their_logits

peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
LORA = Lora(rank=3, alpha=12.0, target_modules=("q_proj", "v_proj", "down_proj"))


def taught(model: nn.Module, seed: int = 3) -> None:
    """The adapter says something: its B is no longer 0."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=draws) * 0.1)


def adapter(home: Path, family: str = "qwen3", lora: Lora = LORA) -> tuple[Decoder, Path, Path]:
    """A random model, its directory, and an adapter for it that was written."""
    base = directory(home / "base", family)
    model = read_model(base)
    attach(model, lora, seed=1)
    taught(model)
    write_adapter(model, home / "adapter", base=str(base), base_sha256=fingerprint(base))
    return model, base, home / "adapter"


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_seed_only(tmp_path: Path) -> None:
    base = directory(tmp_path)

    def fresh(seed: int) -> Decoder:
        model = read_model(base)
        torch.randn(3)  # other random numbers drawn before change nothing
        attach(model, LORA, seed=seed)
        return model

    def adapter_weights(model: Decoder) -> list[Tensor]:
        return [w for w in model.parameters() if w.requires_grad]

    assert torch.equal(logits(fresh(0), PROMPT), logits(read_model(base), PROMPT))
    assert all(map(torch.equal, adapter_weights(fresh(0)), adapter_weights(fresh(0))))
    assert not all(map(torch.equal, adapter_weights(fresh(0)), adapter_weights(fresh(1))))
    wide = {"q_proj": 32 + 48, "v_proj": 32 + 24, "down_proj": 48 + 32}
    assert sum(w.numel() for w in adapter_weights(fresh(0))) == 2 * LORA.rank * sum(wide.values())


@pytest.mark.parametrize("family", ("qwen2", "qwen3", "llama", "mistral"))
def test_peft_loads_the_adapters_that_we_write(family: str, tmp_path: Path) -> None:
    model, base, path = adapter(tmp_path, family)
    theirs = peft.PeftModel.from_pretrained(load(base), path)
    assert close(logits(model, PROMPT), their_logits(theirs, PROMPT), 2e-5)
    assert (logits(model, PROMPT) - logits(read_model(base), PROMPT)).abs().max() > 0.1
    assert torch.equal(logits(read_model(path), PROMPT), logits(model, PROMPT))
    assert close(logits(model, PROMPT), their_logits(load(path), PROMPT), 2e-5)  # transformers takes it as a model
    assert read_tokenizer(path) == read_tokenizer(base)


def test_we_load_the_adapters_that_peft_writes(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    settings = peft.LoraConfig(r=2, lora_alpha=5, target_modules="all-linear", use_rslora=True, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(load(base), settings)
    taught(theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    assert close(logits(read_model(tmp_path / "theirs"), PROMPT), their_logits(theirs.eval(), PROMPT), 2e-5)


def test_equal_adapters_are_equal_files(tmp_path: Path) -> None:
    _, _, first = adapter(tmp_path)
    again = tmp_path / "again"
    write_adapter(read_model(first), again, base=str(tmp_path / "base"), base_sha256=fingerprint(tmp_path / "base"))
    assert sorted(p.name for p in again.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert all((again / p.name).read_bytes() == p.read_bytes() for p in first.iterdir())
    assert json.loads((again / "adapter_config.json").read_text())["target_modules"] == sorted(LORA.target_modules)


def test_a_merged_adapter_gives_a_plain_model_with_the_same_logits(tmp_path: Path) -> None:
    model, _, path = adapter(tmp_path)
    plain = read_model(path)
    merge(plain)
    names = {name for name, _ in plain.named_parameters()}
    assert names == {name for name, _ in read_model(tmp_path / "base").named_parameters()}
    assert all(weight.requires_grad for weight in plain.parameters())
    assert close(logits(plain, PROMPT), logits(model, PROMPT), 2e-5)


def test_the_adapter_has_the_dtype_of_its_base(tmp_path: Path) -> None:
    _, _, path = adapter(tmp_path)
    assert {w.dtype for w in read_model(path, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("targets", "message", "fix"),
    [
        (("q_prj",), "no linear layer is called 'q_prj'", "q_proj, k_proj, v_proj, o_proj, gate_proj"),
        (("roj",), "no linear layer is called 'roj'", "q_proj"),
        (("input_layernorm",), "no linear layer is called 'input_layernorm'", "q_proj"),
        (("q_proj", "lm_head"), "'lm_head' is the head", "remove this target"),
        (("embed_tokens",), "'embed_tokens' is the head or the embedding", "remove this target"),
    ],
)
def test_unknown_targets_are_refused(targets: tuple[str, ...], message: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(Usage) as error:
        attach(read_model(directory(tmp_path)), Lora(target_modules=targets), seed=0)
    assert message in error.value.what and fix in error.value.fix


def test_a_target_may_name_one_layer(tmp_path: Path) -> None:
    model = read_model(directory(tmp_path))
    attach(model, Lora(rank=1, target_modules=("layers.1.self_attn.q_proj",)), seed=0)
    assert [name for name, w in model.named_parameters() if w.requires_grad] == [
        f"model.layers.1.self_attn.q_proj.lora_{matrix}.default.weight" for matrix in "AB"
    ]


def test_adapters_that_do_not_fit_their_base_are_refused(tmp_path: Path) -> None:
    _, _, path = adapter(tmp_path)
    config = json.loads((path / "adapter_config.json").read_text())
    tensors = load_file(path / "adapter_model.safetensors")
    first = next(iter(tensors))
    other = directory(tmp_path / "other", hidden_size=48)
    twin = tmp_path / "twin"
    write_model(Decoder.new(shape(), 2, spread=0.2), twin, tokenizer=characters())
    for number, (change, file, message) in enumerate((
        ({"base_model_name_or_path": str(twin)}, None, "was trained on another base"),  # None: the file as it was
        ({"base_model_name_or_path": str(other)}, tensors, "does not fit its base"),
        ({"base_model_name_or_path": str(tmp_path / "gone")}, tensors, "the base of the adapter in"),
        ({"base_model_name_or_path": str(path)}, tensors, "is itself an adapter"),
        ({"r": 4}, tensors, "does not fit its base"),
        ({"target_modules": ["c_attn"]}, tensors, "does not fit its base"),
        ({}, {n: x for n, x in tensors.items() if n != first}, "does not fit its base"),
        ({}, {**tensors, "odd": torch.ones(1)}, "does not fit its base"),
        ({"peft_type": "IA3"}, tensors, "is not a plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, tensors, "is not a plain LoRA"),
        ({"init_lora_weights": "pissa"}, tensors, "is not a plain LoRA"),
        ({"megatron_config": {}, "megatron_core": "antigravity"}, tensors, "is not a plain LoRA"),
    )):  # fmt: skip
        odd = tmp_path / str(number)
        odd.mkdir()
        (odd / "adapter_config.json").write_text(json.dumps(config | change))
        if file is None:
            shutil.copy(path / "adapter_model.safetensors", odd)
        else:
            save_file(file, odd / "adapter_model.safetensors")
        with pytest.raises(BadData, match=message) as error:
            read_model(odd)
        assert error.value.fix


def test_an_adapter_for_the_head_is_refused(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    theirs = peft.get_peft_model(load(base), peft.LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.raises(BadData, match="adapts the head or the embedding"):
        read_model(tmp_path / "theirs")


def test_damaged_adapter_files_and_pickles_are_refused(tmp_path: Path) -> None:
    _, _, path = adapter(tmp_path)
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(BadData, match="is damaged"):
        read_model(path)
    weights.rename(path / "adapter_model.bin")
    with pytest.raises(BadData, match="has no adapter_model"):
        read_model(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_have_the_bits_of_the_merged_model_and_leave_it_as_it_is(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = read_model(adapter(tmp_path)[2], dtype=dtype)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    merged = merged_weights(model, model.state_dict())
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    merge(model)
    plain = model.state_dict()
    assert merged.keys() == plain.keys() and all(torch.equal(merged[name], x) for name, x in plain.items())
    changed = "model.layers.0.self_attn.q_proj"
    assert not torch.equal(plain[f"{changed}.weight"], before[f"{changed}.base_layer.weight"])
