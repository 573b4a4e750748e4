"""Model directories: read back as written; refused with the cause if invalid."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from groupwise.core import BadData
from groupwise.models import (
    Decoder,
    find_model,
    outline_on_disk,
    read_model,
    read_shape,
    read_tokenizer,
    weight_files,
    write_model,
)
from groupwise.models.safetensors_weights import write_stream
from tests.models.directories import characters, directory, shape

FAMILIES = ("qwen2", "qwen3", "llama", "mistral")


def change(path: Path, name: str = "config.json", **values: object) -> None:
    config = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({k: v for k, v in {**config, **values}.items() if v != "drop"}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_directory_reads_back_equal(tmp_path: Path, family: str, tied: bool, dtype: torch.dtype) -> None:
    decoder = Decoder.new(shape(family, tied_embeddings=tied), 0, dtype=dtype)
    write_model(decoder, tmp_path, tokenizer=characters())
    again = read_model(tmp_path, dtype=dtype)
    assert again.shape == decoder.shape == read_shape(tmp_path)
    stored, expected = again.state_dict(), decoder.state_dict()
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[k], expected[k]) for k in expected)
    assert all(p.requires_grad and p.dtype == dtype for p in again.parameters())
    assert read_tokenizer(tmp_path) == characters()


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    first, second = directory(tmp_path / "a"), directory(tmp_path / "b")
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted(p.name for p in second.iterdir())
    assert all((first / n).read_bytes() == (second / n).read_bytes() for n in names)


def test_shards_are_read_together(tmp_path: Path) -> None:
    weights = load_file(directory(tmp_path) / "model.safetensors")
    whole = read_model(tmp_path).state_dict()
    names = sorted(weights)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, members in parts.items():
        save_file({n: weights[n] for n in members}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    weight_map = {n: file for file, members in parts.items() for n in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert all(torch.equal(t, whole[n]) for n, t in read_model(tmp_path).state_dict().items())
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(BadData, match=r"lacks the shard model-2\.safetensors"):
        read_model(tmp_path)


def test_shards_outside_the_directory_are_not_read(tmp_path: Path) -> None:
    inside = directory(tmp_path / "model")
    (inside / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (inside / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadData, match="lacks the shard"):
        read_model(inside)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "code": (lambda p: change(p, auto_map={"AutoModel": "evil.Model"}), "brings its own code"),
    "family": (lambda p: change(p, model_type="gemma2"), "unknown architecture"),
    "no family": (lambda p: change(p, model_type="drop"), "unknown architecture"),
    "classifier": (
        lambda p: change(p, architectures=["Qwen3ForSequenceClassification"]),
        "does not describe a reward model",
    ),
    "rope parameters": (lambda p: change(p, rope_parameters={"rope_type": "llama3"}), "does not describe a decoder"),
    "quantised": (lambda p: change(p, quantization_config={"bits": 4}), "is quantised"),
    "lacking": (lambda p: change(p, hidden_size="drop"), "lacks hidden_size"),
    "nonsense": (lambda p: change(p, num_hidden_layers="two"), "does not describe a decoder"),
    "uneven": (lambda p: change(p, num_key_value_heads=3), "does not describe a decoder"),
    "not JSON": (lambda p: (p / "config.json").write_text("{"), "is not JSON"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), "is not a JSON object"),
    "no config": (lambda p: (p / "config.json").unlink(), r"has no config\.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_configurations_beyond_the_decoder_are_refused(tmp_path: Path, case: str) -> None:
    damage, message = REFUSED[case]
    damage(directory(tmp_path))
    with pytest.raises(BadData, match=message) as refusal:
        read_shape(tmp_path)
    assert refusal.value.evidence or case == "lacking"
    assert refusal.value.fix


def reshape(path: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(path / "model.safetensors")
    weights = {k: v for k, v in {**weights, **tensors}.items() if v is not None}
    save_file(weights, path / "model.safetensors")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"model.norm.weight": None}, r"missing \(1\): model\.norm\.weight"),
        ({"model.lora.weight": torch.ones(2)}, r"superfluous \(1\): model\.lora\.weight"),
        ({"model.norm.weight": torch.ones(5)}, r"misshapen \(1\): model\.norm\.weight \(5,\), expected \(32,\)"),
    ],
)
def test_tensors_that_differ_from_the_configuration_are_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor | None], says: str
) -> None:
    reshape(directory(tmp_path), **tensors)
    with pytest.raises(BadData) as refusal:
        read_model(tmp_path)
    assert re.search(says, refusal.value.evidence)


def test_a_stored_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    embedding = load_file(directory(tmp_path, tied_embeddings=True) / "model.safetensors")["model.embed_tokens.weight"]
    reshape(tmp_path, **{"lm_head.weight": embedding.clone()})
    assert read_model(tmp_path).lm_head is None
    meant = {"dtype": torch.float32, "device": torch.device("cpu")}
    assert (outlined := outline_on_disk(tmp_path, **meant)) and outlined.on_disk
    assert "lm_head.weight" not in outlined.on_disk.tensors
    reshape(tmp_path, **{"lm_head.weight": embedding + 1})
    for read in (read_model, lambda path: outline_on_disk(path, **meant)):
        with pytest.raises(BadData, match="json ties them"):
            read(tmp_path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    directory(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BadData, match="only a pickle checkpoint") as refusal:
        read_model(tmp_path)
    assert "pytorch_model.bin" in refusal.value.evidence
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(BadData, match=r"has no model\.safetensors\n"):
        read_model(tmp_path)


def test_weight_files_are_named_without_loading_them(tmp_path: Path) -> None:
    assert weight_files(directory(tmp_path)) == [tmp_path / "model.safetensors"]
    (tmp_path / "model.safetensors").rename(tmp_path / "model.bin")
    with pytest.raises(BadData, match="only a pickle checkpoint"):
        weight_files(tmp_path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    file = directory(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadData, match="is damaged"):
        read_model(tmp_path)


def test_a_context_longer_than_the_models_limit_is_refused(tmp_path: Path) -> None:
    directory(tmp_path, "mistral")
    assert read_shape(tmp_path, context=128).max_positions == 128
    with pytest.raises(BadData, match="at most 128 tokens"):
        read_shape(tmp_path, context=129)


def test_a_window_longer_than_every_text_is_dropped(tmp_path: Path) -> None:
    directory(tmp_path, "qwen2")
    change(tmp_path, sliding_window=100, max_window_layers=1, use_sliding_window=False)
    assert read_shape(tmp_path).attention_windows == ()
    change(tmp_path, use_sliding_window=True)
    assert read_shape(tmp_path).attention_windows == (None, 100)
    change(tmp_path, sliding_window=128)
    assert read_shape(tmp_path).attention_windows == ()


def test_models_are_found_by_path_or_packaged_name(tmp_path: Path) -> None:
    assert find_model(tmp_path) == tmp_path
    assert find_model("calculator").name == "calculator"
    with pytest.raises(BadData, match="no model at"):
        read_model(tmp_path / "nowhere")


def test_shapes_outside_their_family_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="qkv_bias is True, but qwen3 has False"):
        write_model(Decoder.new(shape("qwen3", qkv_bias=True), 0), tmp_path, tokenizer=characters())


def test_a_written_model_keeps_the_generation_settings_and_ids_of_its_source(tmp_path: Path) -> None:
    tokenizer, source = characters(), tmp_path / "source"
    write_model(decoder := Decoder.new(shape(), 0), source, tokenizer=tokenizer)
    assert json.loads((source / "config.json").read_text())["pad_token_id"] == min(tokenizer.eos_ids)
    settings = {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "eos_token_id": min(tokenizer.eos_ids)}
    settings |= {"pad_token_id": 3, "transformers_version": "5.0.0"}
    (source / "generation_config.json").write_text(json.dumps(settings))
    config = json.loads((source / "config.json").read_text()) | {"pad_token_id": 3, "bos_token_id": 2}
    (source / "config.json").write_text(json.dumps(config))
    write_model(decoder, tmp_path / "kept", tokenizer=read_tokenizer(source), source=source)
    written = json.loads((tmp_path / "kept" / "generation_config.json").read_text())
    assert written == settings | {"bos_token_id": 2}
    config = json.loads((tmp_path / "kept" / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [2, min(tokenizer.eos_ids), 3]
    other = replace(read_tokenizer(source), eos_ids=frozenset((4,)))  # other end tokens than the source's
    write_model(decoder, tmp_path / "other", tokenizer=other, source=source)
    assert json.loads((tmp_path / "other" / "generation_config.json").read_text())["eos_token_id"] == [4]


def test_streamed_tensors_have_the_bytes_of_the_library() -> None:
    """Only one tensor exists at a time: `outline` is on the meta device, and `read` is called in turn."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    given = {f"{name} é {i}": torch.arange(12).view(3, 4).to(dtype) for i, dtype in enumerate(dtypes) for name in "ba"}
    given |= {"none": torch.zeros(0, 4), "number": torch.tensor(2.5), "columns": torch.ones(4, 3).t()}
    outline = {name: x.to("meta") for name, x in given.items()}
    for metadata in ({}, {"format": "pt"}):
        write_stream(streamed := BytesIO(), outline, given.__getitem__, metadata)
        contiguous = {name: x.contiguous() for name, x in given.items()}
        assert streamed.getvalue() == save(contiguous, metadata or None)


def test_rows_are_read_as_a_whole_model_has_them(tmp_path: Path) -> None:
    path = directory(tmp_path / "model", tied_embeddings=True)
    whole = read_model(path, dtype=torch.bfloat16)
    outlined = outline_on_disk(path, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert outlined is not None and outlined.on_disk is not None and all(x.is_meta for x in outlined.parameters())
    assert {x.dtype for x in outlined.parameters()} == {torch.bfloat16}
    for name, x in whole.named_parameters():
        assert torch.equal(outlined.on_disk.tensors[name].rows(1, len(x) - 1), x[1:]), name


def test_weights_have_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_model(Decoder.new(shape(), 0), tmp_path / "model", tokenizer=characters())
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {"0o640"}, modes
