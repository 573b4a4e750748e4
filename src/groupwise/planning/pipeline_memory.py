"""The memory of a run with a pipeline of diffusers, counted from configurations and headers; no weights are loaded."""

from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import device_of
from groupwise.core import counted
from groupwise.engines import Native
from groupwise.engines.native.attention_layouts import padded
from groupwise.learner import EMA, SamplingPolicy
from groupwise.models import (
    PipelineShape,
    attach,
    base_directory,
    guidance_scale,
    outline,
    pipeline_family,
    pipeline_shape,
    sized,
)
from groupwise.models.decoder.transformers_files import quiet
from groupwise.models.diffusion.pipeline_family import PipelineFamily
from groupwise.models.diffusion.pipeline_velocity import CACHED
from groupwise.models.model_json_files import read_json
from groupwise.models.safetensors_weights import header
from groupwise.planning.process_memory import BACKWARD, BYTES, GIB, PEFT, PROCESS, ProcessMemoryPrediction

DIFFUSERS = 280 << 20
"""Bytes of the modules of diffusers and transformers that a pipeline imports."""
FORWARD = 16
"""Numbers per token and unit of width in a forward without gradient: residuals, keys, values, the MLP's inner layer."""
TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
DECODING = 6
"""Numbers per pixel and channel of the decoder's last block: inputs and outputs of its convolutions."""


def pipeline_memory(recipe: Recipe, directory: Path) -> ProcessMemoryPrediction:
    """The memory of a run on one device, an upper bound: all samples of an iteration at once, in `max_num_seqs` rows.

    Predicted, not measured. With a GPU, samples are in the memory of the host.
    """
    path = base_directory(directory)
    shape = sized(pipeline_shape(path), recipe.pipeline)
    size, on_cpu = BYTES[recipe.machine.dtype], device_of(recipe.machine.device) == "cpu"
    transformer: Any = outline(path)
    if recipe.lora is not None:
        attach(transformer, recipe.lora, seed=0)
    with quiet("diffusers"):
        transformer = transformer.to(getattr(torch, recipe.machine.dtype))
    network = sum(weight.numel() for weight in transformer.parameters())
    trained = sum(weight.numel() for weight in transformer.parameters() if weight.requires_grad)
    family = pipeline_family(path)
    encoders = sum(stored_weights(path / name) for name in TEXT_ENCODERS)
    decoder = stored_weights(path / "vae")
    text, width = family.prompt_tokens(path), transformer.config.joint_attention_dim
    tokens = shape.tokens + text
    sides = sum(
        trained * (size + 4 if isinstance(part, EMA | SamplingPolicy) and size < 4 else size)
        for _, part in recipe.method.models_in_use
    )
    samples = recipe.prompts * recipe.method.group_size * sample_bytes(recipe, shape)
    forward = forwarded_rows(recipe) * tokens * shape.width * FORWARD * size
    decoding = DECODING * decoder_channels(path) * shape.size**2 * 4
    copy = network * size if recipe.cluster.max_staleness else 0
    learned = microbatch_steps(recipe)
    stored = stored_bytes(family, transformer, shape, text, recompute=recipe.machine.gradient_checkpointing)
    guided = 2 if shape.guidance_kind == "classifier-free" and guidance_scale(shape, recipe.pipeline) != 1 else 1
    return ProcessMemoryPrediction(
        parameter_count=network + encoders + decoder,
        trained_parameter_count=trained,
        python_bytes=PROCESS + BACKWARD + PEFT + DIFFUSERS,
        permanent_bytes={
            "weights": (network + encoders) * size + decoder * 4 + copy,
            "optimizer": trained * (12 if size < 4 else 2 * size),
            "side models": sides,
            "prompts": min(CACHED, 1 + recipe.prompts + recipe.evaluate.problems) * text * width * size,
            "samples": samples if on_cpu else 0,
        },
        phase_bytes={
            "sampling": {"engine": max(forward, decoding)},
            "learning": {"activations": guided * learned * stored, "gradients": trained * max(size, 4)},
            "saving": {"checkpoint": 2 * trained * 3 * max(size, 4) if on_cpu else 0},
        },
    )


def pipeline_plan_line(recipe: Recipe, memory: ProcessMemoryPrediction) -> str:
    """One line about a planned run of a pipeline: weights, samples of an iteration, expected memory."""
    steps = 0 if recipe.method.denoise is None else recipe.method.denoise.steps
    samples = (
        f"{counted(recipe.prompts * recipe.method.group_size, 'sample')} of {counted(steps, 'step')} per iteration"
    )
    share = f"{memory.parameter_count:,} weights ({memory.trained_parameter_count:,} trained)"
    return f"plan: {share}, {samples}, about {memory.peak / GIB:.1f} GiB of memory"


def stored_weights(folder: Path) -> int:
    """The number of weights in the files of a pipeline's part, from their headers; 0 for a part that is not there."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return sum(prod(stored.shape) for file in files for stored in header(file).values())


def decoder_channels(path: Path) -> int:
    """The channels of the decoder's last block."""
    return int(read_json(path / "vae" / "config.json")["block_out_channels"][0])


def sample_bytes(recipe: Recipe, shape: PipelineShape) -> int:
    """Bytes of a sample: three states in float32 for each step, and its picture."""
    steps = 0 if recipe.method.denoise is None else recipe.method.denoise.steps
    return steps * 3 * 4 * prod(shape.state_shape) + 3 * shape.size**2


def forwarded_rows(recipe: Recipe) -> int:
    """The most rows of a forward of the engine."""
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    answers = max(recipe.prompts * recipe.method.group_size, recipe.evaluate.problems * recipe.evaluate.samples)
    return padded(min(engine.max_num_seqs, answers), min(16, engine.max_num_seqs))


def microbatch_steps(recipe: Recipe) -> int:
    """The most steps of a microbatch of the learner: of the samples that fit, and of one sample at least."""
    denoise = recipe.method.denoise
    if denoise is None:
        return 0
    answers = -(-recipe.prompts // recipe.method.minibatches) * recipe.method.group_size
    fit = max(1, recipe.machine.microbatch_tokens // denoise.steps)
    return min(answers, fit) * (denoise.end - denoise.noise_start_step)


def stored_bytes(family: PipelineFamily, transformer: Any, shape: PipelineShape, text: int, *, recompute: bool) -> int:
    """Bytes that a forward of one picture, with `text` tokens, stores for the backward pass, on the meta device.

    Matrices of attention do not count: only on that device they exist. With `recompute`, the inputs of the blocks and,
    for the time of its backward pass, one block's activations.
    """
    dtype, config = next(transformer.parameters()).dtype, transformer.config
    x = torch.empty(1, *shape.state_shape, dtype=dtype, device="meta")
    prompt = torch.empty(1, text, config.joint_attention_dim, dtype=dtype, device="meta")
    pooled = torch.empty(1, config.pooled_projection_dim, dtype=dtype, device="meta")
    tokens = shape.tokens + text
    weights = {id(weight.untyped_storage()) for weight in transformer.parameters()}
    stored: dict[int, torch.UntypedStorage] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if id(storage) not in weights and x.shape[-2:] != (tokens, tokens):
            stored[id(storage)] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        family.velocity(transformer, x, torch.empty(1, device="meta"), (prompt, pooled), 1.0)
    total = sum(storage.nbytes() for storage in stored.values())
    if not recompute:
        return total
    return total // shape.layers + shape.layers * tokens * shape.width * dtype.itemsize
