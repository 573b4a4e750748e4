"""Kinds of models: one table recognises them, rooms ask for names and properties, and a new kind is one class."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import groupwise
from groupwise.checks.check_by_model_kind import ERRORS, NOTES
from groupwise.commands.plan import MEMORY_PLANS
from groupwise.core import BadData
from groupwise.engines.native_settings import STEP_ENGINES
from groupwise.models import (
    KINDS,
    ModelKind,
    find_model,
    kind_of,
    outline,
    read_model,
    read_shape,
    read_tokenizer,
    weight_files,
)
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.model_kind import ModelLoadOptions

HOME = Path(groupwise.__file__).parent
CLASSES = {"FlowShape", "FlowPolicy", "MaskedShape", "MaskedPolicy", "PipelineShape"}
PACKAGED = {"calculator": "language", "blank": "language", "rings": "flow", "glyphs": "flow", "beads": "masked"}


@pytest.mark.parametrize(("name", "kind"), PACKAGED.items())
def test_a_directory_is_of_one_kind_and_so_are_its_shape_and_model(name: str, kind: str) -> None:
    path = find_model(name)
    assert kind_of(path).name == kind == read_shape(path).kind_name == read_model(path).shape.kind_name


def test_each_kind_has_its_checks_and_no_table_has_another_kind() -> None:
    assert KINDS.keys() == ERRORS.keys() and [*KINDS][-1] == "language"
    assert {*STEP_ENGINES, *NOTES, *MEMORY_PLANS} <= KINDS.keys()


def test_no_room_asks_for_the_class_of_a_kind() -> None:
    """Outside their own folders, and the tables above, no file tests for a class of flow, masked or pipeline models."""
    asking = []
    for path in HOME.rglob("*.py"):
        if path.relative_to(HOME).parts[:2] in (("models", "flow"), ("models", "masked"), ("models", "diffusion")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type"):
                names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
                asking += [f"{path.name}:{node.lineno}"] if names & CLASSES else []
    assert asking == []


class Planes(ModelSizes):
    kind_name: ClassVar[str] = "planes"


class PlaneKind(ModelKind):
    """A fifth kind: a model of one linear layer."""

    name = "planes"
    config_description = "a plane"

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == "plane"

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> ModelSizes:
        return Planes(vocabulary_size=config["vocab_size"], layers=1, kv_heads=1, head_dim=1, max_positions=8)

    def read(self, path: Path, shape: ModelSizes, loading: ModelLoadOptions) -> nn.Module:
        return nn.Linear(2, shape.vocabulary_size, dtype=loading.dtype)

    def outline(self, path: Path, shape: ModelSizes, *, trust_remote_code: bool) -> nn.Module:
        return nn.Linear(2, shape.vocabulary_size, device="meta")

    def config(self, model: nn.Module) -> dict[str, Any]:
        return {"model_type": "plane"}

    def weight_files(self, path: Path) -> list[Path]:
        return [path / "plane.safetensors"]


def test_a_new_kind_is_one_class_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"planes": PlaneKind(), **KINDS}
    monkeypatch.setattr("groupwise.models.model_kinds_by_name.KINDS", kinds)
    monkeypatch.setattr("groupwise.models.checkpoint.KINDS", kinds)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "plane", "vocab_size": 5, "eos_token_id": 0}))
    assert read_shape(tmp_path).kind_name == "planes" and weight_files(tmp_path) == [tmp_path / "plane.safetensors"]
    loading = ModelLoadOptions(dtype=torch.float64, device="cpu", fresh_weights_seed=0, trust_remote_code=False)
    model = kind_of(tmp_path).read(tmp_path, read_shape(tmp_path), loading)
    assert model.weight.shape == (5, 2) and model.weight.dtype == torch.float64
    assert next(outline(tmp_path).parameters()).is_meta
    with pytest.raises(BadData, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "plane"}))
    with pytest.raises(BadData, match="lacks vocab_size"):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "plane", "vocab_size": 1 << 70}))
    with pytest.raises(BadData, match="takes at most 8 tokens"):
        read_shape(tmp_path, context=9)


def test_an_incomplete_kind_is_refused_at_construction() -> None:
    class Half(ModelKind):
        name = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()  # pyright: ignore[reportAbstractUsage]
