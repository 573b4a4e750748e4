"""Checks that a recipe's method and settings fit its flow model, or its language model."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.core import Usage
from groupwise.data import Prompt, Strategy, declares, with_fields
from groupwise.engines import Native
from groupwise.methods import published
from groupwise.methods.families import method_family
from groupwise.models import (
    DenoisingSettings,
    PipelineSettings,
    PipelineShape,
    base_directory,
    find_model,
    guidance_scale,
    sized,
)
from groupwise.models.decoder.decoder import ModelSizes


def language_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors if the method or the evaluation is for flow models, and the model is a language model."""
    if recipe.evaluate.denoising_steps is not None:
        what, fix = f"evaluate.denoising_steps does not fit the language model {recipe.model}", "leave it out"
        return [Usage(what, evidence="its answers have no denoising steps", fix=fix)]
    if recipe.method.denoise is None:
        return []
    what = f"the method denoises, and {recipe.model} is a language model: its tokens are words"
    fix = "use a flow model: --model rings, quilts or glyphs, or a method of another family: --method grpo"
    return [Usage(what, evidence=f"method.denoise is {recipe.method.denoise}", fix=fix)]


def flow_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors if the method is not for flow models, or settings do not fit a small flow model."""
    return [*setting_errors(recipe, of_small_models(recipe)), *step_errors(recipe)]


def pipeline_errors(recipe: Recipe, shape: PipelineShape) -> list[Usage]:
    """Errors if the method is not for flow models, or settings do not fit a pipeline."""
    errors = setting_errors(recipe, of_pipelines(recipe))
    try:
        guidance_scale(sized(shape, recipe.pipeline), recipe.pipeline)
    except Usage as error:
        errors.append(error)
    return [*errors, *step_errors(recipe)]


def setting_errors(recipe: Recipe, settings: dict[str, tuple[bool, str]]) -> list[Usage]:
    """An error for each setting that the recipe uses and its flow model does not have."""
    return [
        Usage(f"{name} does not fit the flow model {recipe.model}", fix=fix)
        for name, (unfit, fix) in (unfit_settings(recipe) | settings).items()
        if unfit
    ]


def step_errors(recipe: Recipe) -> list[Usage]:
    """Errors of the denoising steps of a flow model: none are set, or some lack noise."""
    denoise = recipe.method.denoise
    if denoise is None:
        what = f"{recipe.model} is a flow model, and the method trains words: it does not set method.denoise"
        return [Usage(what, fix=f"use --method {methods_with('denoise')}")]
    errors = []
    if recipe.evaluate.denoising_steps is not None:
        try:
            replace(denoise, steps=recipe.evaluate.denoising_steps)
        except ValueError as error:
            what = "evaluate.denoising_steps does not fit method.denoise"
            errors.append(Usage(what, evidence=str(error), fix="use another number of evaluate.denoising_steps"))
    return [*errors, *noise_errors(recipe.method.strategy, denoise)]


def methods_with(field: Literal["denoise", "unmask"]) -> str:
    """The published methods of the family flow that set this field, for an error message.

    >>> methods_with("unmask")
    'co_grpo'
    """
    methods = {make.__name__: make() for make in published if method_family(make.__name__) == "flow"}
    return " or ".join(sorted(name for name, method in methods.items() if getattr(method, field) is not None))


def noise_errors(strategy: Strategy, denoise: DenoisingSettings) -> list[Usage]:
    """An error if steps have no noise that the strategy, or one inside it, needs. Some have their own noise."""
    parts = with_fields(strategy)
    if declares(strategy, "makes_own_noise"):
        return []
    if denoise.noise.noise_level == 0:
        what = "no step would be trained: without noise, a denoising step is not an action"
        fix = "set method.denoise.noise.level above 0, or method.strategy to ForwardProcess"
        return [Usage(what, evidence="method.denoise.noise.level is 0", fix=fix)]
    steps = {step for part in parts for step in getattr(part, "noisy_steps", ())}
    if calm := sorted(step for step in steps if not denoise.has_noise(step)):
        what = f"the strategy needs noise in the denoising steps {calm}, and they have none"
        evidence = f"steps {denoise.noise_start_step} to {denoise.end - 1} have noise, by method.denoise"
        return [Usage(what, evidence=evidence, fix="take other steps in method.strategy, or set method.denoise")]
    return []


def unfinished_pictures(recipe: Recipe, shape: ModelSizes, *, train: bool = True) -> list[Usage]:
    """An error if samples of a flow model end before its last denoising step: they have no picture to grade.

    Without `train`, only the samples of evaluation count.
    """
    trained, evaluated = (recipe.method.denoise or DenoisingSettings()).steps, recipe.evaluate.denoising_steps
    steps = max(trained, evaluated or 0) if train else evaluated or trained
    if not shape.tokens_are_denoising_steps or recipe.sampling.max_tokens >= steps:
        return []
    what = f"sampling.max_tokens is {recipe.sampling.max_tokens}: a sample of {recipe.model} has {steps} steps"
    fix = f"use at least {steps}, the number of steps in method.denoise.steps or evaluate.denoising_steps"
    return [Usage(what, fix=fix)]


def unfit_prompts(shape: ModelSizes, prompts: Iterable[Prompt]) -> list[Usage]:
    """An error if a prompt does not have the words that the model takes."""
    for prompt in prompts:
        if not shape.takes(prompt.token_ids):
            what = f"a prompt of this {shape.kind_label} has {shape.prompt}"
            fix = "correct the prompt, or use a task that the model was made for"
            return [Usage(what, evidence=f"problem {prompt.id}: {prompt.text[:80]!r}", fix=fix)]
    return []


def unfit_settings(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that flow models do not have, by name: whether the recipe uses them, and what to do instead."""
    return {
        "warm_start": (recipe.warm_start is not None, "leave it out: demonstrations are texts"),
        "environment": (bool(recipe.environment), "leave it out: an environment replies to texts"),
        "agent": (recipe.agent is not None, "leave it out: an agent reads texts"),
        "engine": (type(recipe.engine) is not Native, "use the engine Native, which denoises"),
        "sampling.temperature": (
            recipe.sampling.temperature != 1,
            "use 1.0; the amount of noise is method.denoise.noise.level",
        ),
    }


def of_small_models(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that only large networks have."""
    machine = resolved(recipe).machine
    low = f"a clip range of 1e-4 needs log-probs of float32: use --machine.dtype float32, not {machine.dtype}"
    return {
        "machine.dtype": (machine.dtype == "bfloat16", low),
        "machine.compile": (machine.compile, "leave it out: the network has few kernels"),
        "machine.gradient_checkpointing": (
            machine.gradient_checkpointing,
            "leave it out: the network has few activations",
        ),
        "lora": (recipe.lora is not None, "leave it out: the network has no layers that take an adapter"),
        "pipeline": (recipe.pipeline != PipelineSettings(), "leave it out: the model is no pipeline of diffusers"),
    }


def of_pipelines(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that pipelines do not have, or need."""
    denoise, directory = recipe.method.denoise, find_model(recipe.model, weights=False)
    whole = recipe.lora is None and base_directory(directory) == directory
    return {
        'lora = "none"': (whole, "train an adapter: --lora.rank 16; the weights of a pipeline are not written here"),
        "machine.compile": (recipe.machine.compile, "leave it out: it compiles layers of this package's decoder"),
        "method.denoise.time_shift": (
            denoise is not None and denoise.time_shift != 1,
            "leave it out: the times are those of the pipeline's scheduler, which shifts them already",
        ),
    }
