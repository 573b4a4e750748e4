"""`ModelKind`: a kind of model, such as flow models: how its directories are recognised, read and written."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.decoder.layer_weights import LayerWeights, outline_of
from groupwise.models.model_json_files import read_json
from groupwise.models.quantized_linear import dequantize
from groupwise.models.safetensors_weights import stored_weights, write_stream
from groupwise.models.tokenizer import Tokenizer, stored_tokenizer

__all__ = ["ModelKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoadOptions:
    """How a model is loaded: dtype and device of its weights, the seed of fresh weights, and a permission.

    With `quantization`, its linear layers are in 4 bits.
    """

    dtype: torch.dtype
    device: torch.device | str
    fresh_weights_seed: int
    trust_remote_code: bool
    quantization: Literal["nf4"] | None = None

    def convert(self, weight: Tensor) -> Tensor:
        """A stored weight on the device, with the dtype."""
        return weight.to(self.device, self.dtype)


class ModelKind(ABC):
    """A kind of model. What other rooms ask of it are properties of its `ModelSizes`, whose `kind_name` is its `name`.

    Engines, checks and memory of a kind are in tables of their rooms, by this name. Each `path` is the directory of a
    model, not that of an adapter; each `shape` and `model` are of this kind.
    """

    name: ClassVar[str]
    config_description: ClassVar[str]
    """What a config.json describes, for an error message."""
    auto_dtype_is_bfloat16: ClassVar[bool] = True
    """Whether the dtype `auto` is bfloat16 on a GPU; else it is float32 there, too."""
    default_adapter_targets: ClassVar[tuple[str, ...]] = ()
    """The usual targets of an adapter; empty: the defaults of `Lora`."""

    @abstractmethod
    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        """Whether a directory holds such a model. `config` is its config.json, empty without one."""

    @abstractmethod
    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> ModelSizes:
        """The sizes of the model in a directory. KeyError, TypeError or ValueError for an invalid `config`."""

    @abstractmethod
    def read(self, path: Path, shape: Any, loading: ModelLoadOptions) -> Any:
        """Load the model in a directory. BadData names every difference between its files and its `shape`."""

    @abstractmethod
    def outline(self, path: Path, shape: Any, *, trust_remote_code: bool) -> nn.Module:
        """The modules of the model in a directory without its weights."""

    @abstractmethod
    def config(self, model: Any) -> dict[str, Any]:
        """The fields of config.json about a model. `Usage` for a model that is not written here."""

    def outline_on_disk(self, path: Path, shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
        """The modules of a `Decoder` in a directory, without weights, which stay on disk; None for another model."""
        return None

    def write(self, model: Any, path: Path, config: Mapping[str, Any]) -> None:
        """Write the weights of a model, and its config.json with its dtype. Layers in 4 bits become plain ones."""
        dequantize(model)
        write_plain(path, config, dict(model.named_parameters()))

    def write_layers(self, model: Any, path: Path, config: Mapping[str, Any], weights: LayerWeights) -> None:
        """As `write`, for a decoder without weights, whose `weights` are written one after the other."""
        write_plain(path, config, weights)

    def stored_config(self, path: Path) -> Mapping[str, Any]:
        """The fields of config.json in a directory. BadData without one."""
        return read_json(path / "config.json")

    def weight_files(self, path: Path) -> list[Path]:
        """The files with weights; none for a fresh model. BadData if one is missing."""
        return stored_weights(path)

    def part_files(self, path: Path, *suffixes: str) -> list[Path]:
        """The files with these endings in the folders of a model's parts; none for a model in one folder."""
        return []

    def tokenizer(self, path: Path) -> Tokenizer:
        """The tokenizer of the prompts, with all end tokens."""
        return stored_tokenizer(path)

    def sized(self, shape: Any, pipeline: Any) -> ModelSizes:
        """The sizes with the field `pipeline` of a recipe. `Usage` for settings that the model does not take."""
        return shape

    def set_up(self, model: Any, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Set how a model generates and what is trained, by fields of a recipe and its method.

        They are `denoise`, `unmask`, `pipeline` and `freeze_vision_tower`.
        """


def write_plain(path: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write config.json and the weights, one after the other."""
    outline = outline_of(weights)
    with (path / "model.safetensors").open("wb") as file:
        write_stream(file, outline, weights.__getitem__, {"format": "pt"})
    dtype = str(next(iter(outline.values())).dtype).removeprefix("torch.")
    write_json(path / "config.json", {**config, "dtype": dtype, "torch_dtype": dtype})


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write the configuration of a model."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
