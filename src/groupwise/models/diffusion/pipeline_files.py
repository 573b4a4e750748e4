"""Reads pipelines of diffusers: as a policy with frozen parts around it, or as the transformer without weights."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.core import BadData, Usage, visible
from groupwise.models.decoder.transformers_files import quiet
from groupwise.models.diffusion.pipeline_index import (
    ENCODERS,
    WITH_WEIGHTS,
    is_pipeline,
    pipeline_family,
    pipeline_files,
    pipeline_index,
    pipeline_shape,
)
from groupwise.models.diffusion.pipeline_settings import PipelineSettings
from groupwise.models.diffusion.pipeline_shape import PipelineShape, guidance_scale, sized
from groupwise.models.diffusion.pipeline_velocity import FrozenDiffusersParts, PipelineVelocity
from groupwise.models.diffusion.prompt_bytes import byte_tokenizer
from groupwise.models.flow.flow_files import FlowKind
from groupwise.models.flow.flow_policy import FlowPolicy
from groupwise.models.flow.velocity_network import END, FlowShape
from groupwise.models.model_json_files import read_json
from groupwise.models.model_kind import ModelLoadOptions
from groupwise.models.safetensors_weights import header, refuse_nonfinite, refuse_types
from groupwise.models.tokenizer import Tokenizer

__all__ = ["LORA_TARGETS", "set_pipeline"]

LORA_TARGETS = (
    "attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0",
    "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out",
)  # fmt: skip
"""The usual targets of an adapter of a pipeline: the attention of pictures and of prompts. Flow-GRPO's code."""


class PipelineKind(FlowKind):
    """Pipelines of diffusers: a directory with an index, and a folder for each part."""

    name = PipelineShape.kind_name
    config_description = "a pipeline"
    default_adapter_targets = LORA_TARGETS

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return is_pipeline(path)

    def stored_config(self, path: Path) -> Mapping[str, Any]:
        return {}

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> PipelineShape:
        return pipeline_shape(path)

    def read(self, path: Path, shape: FlowShape, loading: ModelLoadOptions) -> FlowPolicy:
        return read_pipeline(path, dtype=loading.dtype, device=loading.device)

    def outline(self, path: Path, shape: FlowShape, *, trust_remote_code: bool) -> Any:
        return pipeline_outline(path)

    def config(self, model: FlowPolicy) -> dict[str, Any]:
        fix = "keep the adapter beside the pipeline; to merge them: load_lora_weights, fuse_lora, save_pretrained"
        raise Usage("a pipeline is not written here: diffusers merges and writes it", fix=fix)

    def weight_files(self, path: Path) -> list[Path]:
        return pipeline_files(path, ".safetensors")

    def part_files(self, path: Path, *suffixes: str) -> list[Path]:
        return pipeline_files(path, *suffixes)

    def tokenizer(self, path: Path) -> Tokenizer:
        return Tokenizer.of(byte_tokenizer(), [END])

    def sized(self, shape: PipelineShape, pipeline: PipelineSettings) -> PipelineShape:
        return sized(shape, pipeline)

    def set_up(self, model: FlowPolicy, settings: Mapping[str, Any]) -> None:
        super().set_up(model, settings)
        set_pipeline(model, settings["pipeline"])


def read_pipeline(path: Path, *, dtype: torch.dtype, device: torch.device | str) -> FlowPolicy:
    """The policy of a pipeline, with the default settings. BadData for files that do not fit each other.

    Transformer and text encoders have the dtype; the decoder is float32.
    """
    family, parts, shape = pipeline_family(path), pipeline_index(path), pipeline_shape(path)
    for file in pipeline_files(path, ".safetensors"):
        refuse_types(file, header(file))
    absent = {
        name: None for name in (*family.optional_parts, "image_encoder", "feature_extractor") if name not in parts
    }
    try:
        with quiet(), quiet("diffusers"):
            diffusers: Any = import_module("diffusers")
            encoders = {
                name: text_encoder(path / name, kind, dtype) for name, kind in parts.items() if name in ENCODERS
            }
            pipe = getattr(diffusers, family.pipeline_class).from_pretrained(
                path, local_files_only=True, use_safetensors=True, **absent, **encoders,
                dtype={"vae": torch.float32, "default": dtype},
            )  # fmt: skip
            pipe.to(device)
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        what, fix = f"diffusers cannot read the pipeline in {path}", "fetch the directory again"
        raise BadData(what, evidence=str(error).partition("\n")[0], fix=fix) from error
    for name in (name for name in WITH_WEIGHTS if name in parts):
        freeze(path, getattr(pipe, name))
    refuse_superfluous(path / "transformer", pipe.transformer)
    frozen = FrozenDiffusersParts(family, pipe, tokens=0)
    policy = FlowPolicy(
        shape, velocity=PipelineVelocity(frozen, 1.0, shape.guidance_kind == "classifier-free"), surroundings=frozen
    )
    set_pipeline(policy, PipelineSettings())
    return policy


def text_encoder(folder: Path, kind: str, dtype: torch.dtype) -> nn.Module:
    """A text encoder. BadData if weights are not stored, or in other sizes: transformers makes random ones of them."""
    transformers: Any = import_module("transformers")
    encoder, info = getattr(transformers, kind).from_pretrained(
        folder, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    if lacking := sorted({str(name) for key in ("missing_keys", "mismatched_keys") for name in info[key]}):
        what = f"the files in {folder} lack weights that its config.json describes"
        evidence = f"{len(lacking)}, such as {visible(lacking[0])}"
        raise BadData(what, evidence=evidence, fix="fetch the directory again, with its own config.json")
    return encoder


def refuse_superfluous(folder: Path, transformer: nn.Module) -> None:
    """BadData for stored weights that the configuration does not describe: diffusers drops them without a word."""
    known = {name for name, _ in (*transformer.named_parameters(), *transformer.named_buffers())}
    if unknown := sorted({name for file in folder.glob("*.safetensors") for name in header(file)} - known):
        what = f"the files in {folder} have weights that its config.json does not describe"
        evidence = f"{len(unknown)}, such as {visible(unknown[0])}"
        raise BadData(what, evidence=evidence, fix="fetch the directory again, with its own config.json")


def freeze(path: Path, module: nn.Module) -> None:
    """Freeze the weights of a part. Its buffers become non-persistent, so that checkpoints do not contain them."""
    module.requires_grad_(False).train(False)
    for name, weight in module.named_parameters():
        refuse_nonfinite(path, name, weight)
    for owner in module.modules():
        for name, buffer in list(owner.named_buffers(recurse=False)):
            owner.register_buffer(name, buffer, persistent=False)


def set_pipeline(policy: FlowPolicy, settings: PipelineSettings) -> None:
    """Use a pipeline as a recipe says. `Usage` for a size or a guidance that the transformer does not take."""
    shape, velocity = policy.shape, policy.velocity
    assert isinstance(shape, PipelineShape) and isinstance(velocity, PipelineVelocity), "the policy of a pipeline"
    policy.shape = sized(shape, settings)
    velocity.guidance = guidance_scale(shape, settings)
    velocity.frozen.tokens = policy.shape.tokens
    velocity.frozen.times.cache_clear()


def pipeline_outline(path: Path) -> nn.Module:
    """The transformer of a pipeline without its weights, on the meta device."""
    name = pipeline_index(path)["transformer"]
    config = read_json(path / "transformer" / "config.json")
    try:
        with quiet(), quiet("diffusers"), torch.device("meta"):
            diffusers: Any = import_module("diffusers")
            return getattr(diffusers, name).from_config(config)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"{path / 'transformer' / 'config.json'} does not describe a transformer"
        raise BadData(what, evidence=str(error), fix="fetch the directory again") from error
