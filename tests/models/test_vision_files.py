"""The directories of vision-language models: written and read again, and refused where something is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.core import BadData
from groupwise.models import find_template, read_model, read_shape, read_tokenizer, write_model
from tests.models.vision_directories import noise, tiny_vision, vision_directory


def changed(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads((path / name).read_text())
    change(value)
    (path / name).write_text(json.dumps(value))


@pytest.mark.parametrize("family", ["idefics3", "smolvlm", "qwen2_5_vl"])
def test_a_written_model_is_complete(family: str, tmp_path: Path) -> None:
    model, tokenizer = tiny_vision(family, dtype=torch.float32)
    write_model(model, tmp_path / "m", tokenizer=tokenizer, source=vision_directory(family))
    again, same = read_model(tmp_path / "m"), read_tokenizer(tmp_path / "m")
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    prompts = [find_template("chat", t)("red?", pictures=(noise(1),)) for t in (tokenizer, same)]
    assert prompts[0] == prompts[1] and read_shape(tmp_path / "m") == read_shape(vision_directory(family))


BAD: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "code of the directory": (
        "preprocessor_config.json", lambda c: c.update(auto_map={"AutoImageProcessor": "evil.Processor"}), "own code",
    ),
    "another processor": (
        "preprocessor_config.json", lambda c: c.update(image_processor_type="EvilProcessor"), "EvilProcessor",
    ),
    "frames of another size": (
        "preprocessor_config.json", lambda c: c["max_image_size"].update(longest_edge=64), "takes frames of 16",
    ),
    "an endless size": ("preprocessor_config.json", lambda c: c["size"].update(longest_edge=10**9), "from 1 to 4096"),
    "no size": ("preprocessor_config.json", lambda c: c.pop("size"), "longest_edge"),
    "a mean that is no number": ("preprocessor_config.json", lambda c: c.update(image_mean=["x"] * 3), "image_mean"),
    "parts without a bound": (
        "preprocessor_config.json", lambda c: c.update(do_image_splitting=True, do_resize=False), "do_resize",
    ),
    "a placeholder that is another token": ("config.json", lambda c: c.update(image_token_id=7), "image_token_id is 7"),
    "patches that do not fit": ("config.json", lambda c: c.update(scale_factor=3), "cannot be joined by 3"),
    "too many layers": (
        "config.json", lambda c: c["vision_config"].update(num_hidden_layers=10**9), "too many layers",
    ),
}  # fmt: skip


BAD_QWEN: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "code of a Qwen directory": (
        "preprocessor_config.json", lambda c: c.update(auto_map={"AutoImageProcessor": "evil.Processor"}), "own code",
    ),
    "the processor of Idefics3": (
        "preprocessor_config.json", lambda c: c.update(image_processor_type="Idefics3ImageProcessor"), "be Qwen2VL",
    ),
    "patches of another size": (
        "preprocessor_config.json", lambda c: c.update(patch_size=8), "patch_size is 8, and the vision tower has",
    ),
    "a picture of any size": (
        "preprocessor_config.json", lambda c: c.update(max_pixels=10**12), "longest_edge is 1000000000000",
    ),
    "an area that is too small": ("preprocessor_config.json", lambda c: c.update(max_pixels=4), "from 128 to"),
    "no area": ("preprocessor_config.json", lambda c: c.pop("max_pixels"), "longest_edge"),
    "no resizing": ("preprocessor_config.json", lambda c: c.update(do_resize=False), "do_resize is false"),
    "no mean": ("preprocessor_config.json", lambda c: c.pop("image_mean"), "image_mean"),
    "another start of a picture": (
        "config.json", lambda c: c.update(vision_start_token_id=7), "vision_start_token_id is 7",
    ),
    "too many layers of a tower": ("config.json", lambda c: c["vision_config"].update(depth=10**9), "too many layers"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*BAD, *BAD_QWEN])
def test_a_directory_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    path = shutil.copytree(vision_directory("idefics3" if name in BAD else "qwen2_5_vl"), tmp_path / "m")
    file, change, seen = (BAD | BAD_QWEN)[name]
    changed(path, file, change)
    (path / "evil.py").write_text("raise SystemExit(9)")
    with pytest.raises(BadData) as caught:
        read_tokenizer(path)
    assert seen in str(caught.value) and "do:" in str(caught.value)


def test_weights_of_another_tower_are_refused(tmp_path: Path) -> None:
    path = shutil.copytree(vision_directory(), tmp_path / "m")
    changed(path, "config.json", lambda c: c["vision_config"].update(intermediate_size=32))
    with pytest.raises(BadData, match=r"the (model|tensors) in"):
        read_model(path)


def test_the_settings_of_newer_directories_are_in_a_table(tmp_path: Path) -> None:
    path = shutil.copytree(vision_directory(), tmp_path / "m")
    settings = json.loads((path / "preprocessor_config.json").read_text())
    (path / "preprocessor_config.json").unlink()
    (path / "processor_config.json").write_text(json.dumps({"image_processor": settings, "image_seq_len": 4}))
    assert read_tokenizer(path).picture_processor == read_tokenizer(vision_directory()).picture_processor
    changed(path, "processor_config.json", lambda c: c.update(auto_map={"AutoProcessor": "evil.Processor"}))
    with pytest.raises(BadData, match="describes no image processor"):
        read_tokenizer(path)
