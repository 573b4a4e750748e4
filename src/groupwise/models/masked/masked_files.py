"""Reads and writes the directory of a masked model: config.json, model.safetensors, and the tokenizer."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from groupwise.models.json_fields import mapping, real, short, whole
from groupwise.models.masked.masked_cell_predictor import MaskedShape
from groupwise.models.masked.masked_policy import MaskedPolicy
from groupwise.models.masked.unmasking_schedule import MOST_UNMASKING_STEPS, UnmaskingSettings
from groupwise.models.model_json_files import read_json
from groupwise.models.model_kind import ModelKind, ModelLoadOptions
from groupwise.models.safetensors_weights import load_exactly

__all__ = ["stored_unmask"]

MASKED = "groupwise_masked"
SIZE = 1 << 14
"""The largest width, number of cells and vocabulary."""
TABLE = 1 << 20
"""The most embeddings of a table: one for each symbol in each cell, or each word at each position."""
LAYERS = 128
"""The most layers."""
NAMES = ("cells", "symbols", "prompt_vocabulary", "prompt_length", "width", "layers", "heads")


class MaskedKind(ModelKind):
    """Masked models in the format of this package."""

    name = MaskedShape.kind_name
    config_description = "a masked model"
    auto_dtype_is_bfloat16 = False

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == MASKED

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> MaskedShape:
        return masked_shape(config)

    def read(self, path: Path, shape: MaskedShape, loading: ModelLoadOptions) -> MaskedPolicy:
        policy = MaskedPolicy(shape, stored_unmask(path))
        fix = "train it first, or use the model beads"
        load_exactly(policy, path, loading.convert, "masked model", fix)
        return policy.to(loading.device).requires_grad_(True)

    def outline(self, path: Path, shape: MaskedShape, *, trust_remote_code: bool) -> MaskedPolicy:
        return MaskedPolicy(shape)

    def config(self, model: MaskedPolicy) -> dict[str, Any]:
        return masked_config(model)

    def set_up(self, model: MaskedPolicy, settings: Mapping[str, Any]) -> None:
        if settings["unmask"] is not None:
            model.set_unmask(settings["unmask"])


def masked_shape(config: Mapping[str, Any]) -> MaskedShape:
    """The sizes in a configuration. KeyError or ValueError for an invalid one."""
    sizes = {name: whole(config, name, low=1, high=LAYERS if name == "layers" else SIZE) for name in NAMES}
    for count, entries in (("cells", sizes["symbols"] + 1), ("prompt_length", sizes["prompt_vocabulary"])):
        if sizes[count] * entries > TABLE:
            raise ValueError(
                f"{count} is {sizes[count]} with {entries} embeddings each: at most {TABLE} fit in a table"
            )
    if sizes["width"] % sizes["heads"]:
        raise ValueError(f"width is {sizes['width']}: it must be a multiple of heads, {sizes['heads']}")
    unmask_of(config)
    return MaskedShape(
        vocabulary_size=MOST_UNMASKING_STEPS + 1 + 2 * sizes["symbols"] + sizes["prompt_vocabulary"], **sizes
    )


def masked_config(model: MaskedPolicy) -> dict[str, Any]:
    """The configuration of a masked model and its schedule, for config.json."""
    sizes = {name: getattr(model.shape, name) for name in NAMES}
    return {"model_type": MASKED, **sizes, "unmask": asdict(model.unmask), "vocab_size": model.shape.vocabulary_size}


def unmask_of(config: Mapping[str, Any]) -> UnmaskingSettings:
    """The settings of the stored schedule. KeyError or ValueError if one is missing or invalid."""
    stored = mapping(config, "unmask")
    names = [field.name for field in fields(UnmaskingSettings)]
    if unknown := sorted(stored.keys() - names):
        raise ValueError(f"unmask has the fields {', '.join(map(short, unknown))}: it has {', '.join(names)}")
    numbers = {name: real(stored, name, low=0) for name in names if name != "steps"}
    return UnmaskingSettings(steps=whole(stored, "steps", low=1, high=MOST_UNMASKING_STEPS), **numbers)


def stored_unmask(path: Path) -> UnmaskingSettings:
    """The settings of the schedule that the masked model in a directory has, from its config.json."""
    return unmask_of(read_json(path / "config.json"))
