"""Fresh models: directories marked as without weights, which are drawn from a seed. Lost weights are an error."""

import json
from pathlib import Path

import pytest
import torch
from tools.blank_model import write_blank

from groupwise import models
from groupwise.__main__ import main
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.toml import DEFAULT
from groupwise.config.user_code import UserCode
from groupwise.core import BadData
from groupwise.models import Decoder, find_model, read_model, read_shape, weight_files, write_fresh, write_model
from groupwise.training.build_run import build
from tests.models.directories import characters, directory, shape
from tests.models.test_checkpoint import change


def test_weights_are_those_of_the_seed(tmp_path: Path) -> None:
    write_fresh(shape(), tmp_path, tokenizer=characters())
    assert read_shape(tmp_path) == shape() and weight_files(tmp_path) == []
    models = [read_model(tmp_path, seed=seed) for seed in (3, 3, 4)]
    weights = [model.state_dict()["model.embed_tokens.weight"] for model in models]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(weights[0], Decoder.new(shape(), 3).state_dict()["model.embed_tokens.weight"])
    assert all(w.requires_grad for w in models[0].parameters())


def test_a_fresh_model_is_written_as_an_ordinary_directory(tmp_path: Path) -> None:
    write_fresh(shape(), tmp_path / "fresh", tokenizer=characters())
    write_model(read_model(tmp_path / "fresh", seed=3), tmp_path / "model", tokenizer=characters())
    assert "fresh_weights" not in json.loads((tmp_path / "model" / "config.json").read_text())
    one, other = (read_model(tmp_path / "model", seed=seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_stored_weights_are_read_also_if_marked_fresh(tmp_path: Path) -> None:
    change(directory(tmp_path), fresh_weights=True)
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


@pytest.mark.parametrize("said", [False, "true", 1, "drop"])
def test_missing_weights_are_refused_unless_marked_fresh(tmp_path: Path, said: object) -> None:
    change(directory(tmp_path), fresh_weights=said)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadData, match=r"has no model\.safetensors"):
        read_model(tmp_path)


def test_only_native_models_can_be_fresh(tmp_path: Path) -> None:
    change(directory(tmp_path), fresh_weights=True, hidden_act="gelu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadData, match="has no weights, and random weights") as refusal:
        read_model(tmp_path)
    assert "gelu" in refusal.value.evidence


def test_the_packaged_fresh_model_is_what_its_command_writes(tmp_path: Path) -> None:
    write_blank(tmp_path)
    packaged = find_model("blank")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in packaged.iterdir())
    assert all((tmp_path / name).read_bytes() == (packaged / name).read_bytes() for name in names)


def test_packaged_models_have_a_head_size_that_vllm_takes() -> None:
    """vLLM's CPU backend refuses a size such as 24."""
    configs = Path(models.__file__).parent.glob("*/config.json")
    packaged = [config.parent for config in configs if "groupwise_" not in config.read_text()]
    assert {path.name for path in packaged} == {"blank", "calculator", "hinted_sums"}
    assert all(read_shape(path).head_dim % 32 == 0 for path in packaged)


def test_other_seeds_give_other_weights() -> None:
    def weights(seed: str) -> torch.Tensor:
        recipe = read_recipe(DEFAULT, [("model", "blank"), ("seed", seed)], UserCode())
        return build(recipe, UserCode()).model.state_dict()["model.embed_tokens.weight"]

    assert torch.equal(weights("1"), weights("1")) and not torch.equal(weights("1"), weights("2"))


def test_an_adapter_on_a_fresh_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--iterations", "0", "--evaluate.problems", "1", "--out", str(tmp_path)]  # should it train
    assert main(["train", "--model", "blank", "--lora.rank", "4", *short]) == 2
    assert "has no weights" in (told := capsys.readouterr().err) and "remove lora" in told
