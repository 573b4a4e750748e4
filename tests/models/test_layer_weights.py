"""Models without weights: one layer is read at a time, and the written files are those of whole models."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from groupwise.core import BadData
from groupwise.models import (
    Decoder,
    LayerWeights,
    Lora,
    SequenceClassifier,
    attach,
    fingerprint,
    outline_on_disk,
    read_model,
    write_adapter,
    write_model,
)
from groupwise.models.decoder.layer_weights import layer_of
from tests.models.directories import characters, directory
from tests.models.test_checkpoint import reshape
from tests.models.test_classifier import classifier

LORA = Lora(rank=2, target_modules=("q_proj", "down_proj"))
FLOAT, CPU = torch.float32, torch.device("cpu")
NAMES = ("embed", "model.layers.0.a", "model.layers.0.b", "model.layers.1.a", "model.layers.10.a", "norm")


def stored(names: Sequence[str] = NAMES) -> Any:
    """Weights that are their number in `NAMES`, and the names of each read.

    Without a type: the checker of types that runs in tests looks up the first weight.
    """
    asked: list[Sequence[str]] = []

    def read(names: Sequence[str]) -> Mapping[str, Tensor]:
        asked.append(names)
        return {name: torch.tensor([float(NAMES.index(name))]) for name in names}

    return LayerWeights({name: torch.zeros(1) for name in names}, read), asked


@given(st.lists(st.sampled_from(NAMES)))
def test_a_layer_is_read_when_one_of_its_weights_is_looked_up(looked_up: list[str]) -> None:
    weights, asked = stored()
    found = [int(weights[name]) for name in looked_up]
    assert found == [NAMES.index(name) for name in looked_up]
    layers = [layer_of(name) for name in looked_up]
    changes = [layer for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1]]
    assert [layer_of(names[0]) for names in asked] == changes
    assert all([*names] == [name for name in NAMES if layer_of(name) == layer_of(names[0])] for names in asked)
    assert list(weights) == list(NAMES) and "embed" in weights and "head" not in weights


def test_some_weights_are_read_without_the_others_of_their_layer() -> None:
    weights, asked = stored()
    chosen = weights.only(["model.layers.0.b", "norm"])
    assert {name: int(x) for name, x in chosen.items()} == {"model.layers.0.b": 2, "norm": 5}
    assert asked == [["model.layers.0.b"], ["norm"]]


def test_converted_weights_are_made_of_the_layer_that_has_them() -> None:
    def added(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`a + b` in place of both."""
        others = {name: x for name, x in layer.items() if not name.endswith(".b")}
        return {name: sum((x for n, x in layer.items() if n == f"{name[:-1]}b"), x) for name, x in others.items()}

    weights, asked = stored()
    converted = weights.converted(added)
    assert all(x.is_meta for x in converted.outline.values())
    asked.clear()
    assert {name: int(x) for name, x in converted.items()} == {
        "embed": 0, "model.layers.0.a": 1 + 2, "model.layers.1.a": 3, "model.layers.10.a": 4, "norm": 5,
    }  # fmt: skip
    assert asked[-4:] == [[*NAMES[1:3]], ["model.layers.1.a"], ["model.layers.10.a"], ["norm"]]


def taught(model: nn.Module) -> nn.Module:
    """Every weight that is trained beside or in an adapter differs from its first value."""
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for x in model.parameters():
            if x.requires_grad:
                x.add_(torch.randn(x.shape, generator=draws) * 0.1)
    return model


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("kind", ["decoder", "reward model", "reward model with an adapter", "in bfloat16"])
def test_a_model_without_weights_is_written_with_the_bytes_of_the_whole_one(kind: str, tmp_path: Path) -> None:
    dtype = torch.bfloat16 if kind == "in bfloat16" else FLOAT
    base = directory(tmp_path / "base", tied_embeddings=kind != "decoder")
    model, outlined = read_model(base, dtype=dtype), outline_on_disk(base, dtype=dtype, device=CPU)
    assert outlined is not None
    if kind != "decoder":
        model, outlined = (SequenceClassifier.on(x, None) for x in (model, outlined))  # type: ignore[arg-type]
    if "adapter" in kind or kind == "in bfloat16":
        for x in (model, outlined):
            attach(x, LORA, seed=1)
    whole = taught(model).state_dict()
    weights = LayerWeights(outlined.state_dict(), lambda names: {name: whole[name] for name in names})
    for path, it, given_weights in ((tmp_path / "one", model, None), (tmp_path / "two", outlined, weights)):
        write_model(it, path, tokenizer=characters(), source=base, weights=given_weights)  # type: ignore[arg-type]
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_an_adapter_without_its_base_is_written_with_equal_bytes(tmp_path: Path) -> None:
    """Nothing but the adapter is read. A fresh one has the numbers of one on a whole base, which stays unread."""
    base = directory(tmp_path / "base")
    model, outlined = read_model(base), outline_on_disk(base, dtype=FLOAT, device=CPU)
    assert outlined is not None
    for x in (model, outlined):
        attach(x, LORA, seed=1)
    for (name, x), (_, theirs) in zip(outlined.named_parameters(), model.named_parameters(), strict=True):
        matrix = ".lora_" in name
        assert (x.is_meta, x.requires_grad, x.dtype, x.shape) == (not matrix, matrix, theirs.dtype, theirs.shape)
        assert not matrix or torch.equal(x, theirs)
    whole, asked = taught(model).state_dict(), set[str]()

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        asked.update(names)
        return {name: whole[name] for name in names}

    settings = {"base": str(base), "base_sha256": fingerprint(base)}
    write_adapter(model, tmp_path / "one", **settings)
    write_adapter(outlined, tmp_path / "two", **settings, weights=LayerWeights(outlined.state_dict(), read))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    first = {"model.embed_tokens.weight"}  # which the checker of types that runs in tests looks up
    assert asked - first == {name for name, x in model.named_parameters() if x.requires_grad}


def of_an_adapter(path: Path) -> Path:
    """The directory of an adapter."""
    model = read_model(base := directory(path / "base"))
    attach(model, LORA, seed=1)
    write_adapter(taught(model), path / "adapter", base=str(base), base_sha256=fingerprint(base))
    return path / "adapter"


def of_a_reward_model(path: Path) -> Path:
    write_model(classifier(dtype=FLOAT), path, tokenizer=characters())
    return path


@pytest.mark.parametrize("written", [of_an_adapter, of_a_reward_model])
@pytest.mark.parametrize("dtype", [FLOAT, torch.bfloat16])
def test_rows_of_its_files_are_those_of_the_whole_model(
    written: Callable[[Path], Path], dtype: torch.dtype, tmp_path: Path
) -> None:
    path = written(tmp_path)
    whole, outlined = read_model(path, dtype=dtype), outline_on_disk(path, dtype=dtype, device=CPU)
    assert isinstance(whole, Decoder) and outlined is not None and outlined.on_disk is not None
    assert [n for n, _ in outlined.named_parameters()] == [n for n, _ in whole.named_parameters()]
    for (name, x), theirs in zip(outlined.named_parameters(), whole.parameters(), strict=True):
        mine = outlined.on_disk.whole(name, len(x)) if x.is_meta else x
        assert torch.equal(mine, theirs) and x.requires_grad == theirs.requires_grad, name
        assert x.is_meta != (".lora_" in name)


def test_a_reward_model_with_other_tensors_is_refused(tmp_path: Path) -> None:
    reshape(of_a_reward_model(tmp_path), **{"score.weight": None})
    with pytest.raises(BadData, match=r"are not those that its config\.json describes"):
        outline_on_disk(tmp_path, dtype=FLOAT, device=CPU)
