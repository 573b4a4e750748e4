"""Checks that a recipe's method and settings fit its model: a flow model, or a language model."""

from collections.abc import Iterable

from groupwise.config.devices import resolved
from groupwise.config.recipe import Recipe
from groupwise.data import Prompt, Usage
from groupwise.methods.families import method_files
from groupwise.models import FlowShape, Pipeline, PipelineShape, base_directory, find_model, sized
from groupwise.models.decoder import Sizes
from groupwise.rollout import Native, Retraced


def flow_errors(recipe: Recipe, shape: Sizes) -> list[Usage]:
    """Errors if the method does not fit the kind of the model, or settings are not available for flow models."""
    denoise = recipe.method.denoise
    if not isinstance(shape, FlowShape):
        if denoise is None:
            return []
        what = f"the method denoises, and {recipe.model} is a language model: its tokens are words"
        fix = "use a flow model: --model rings, quilts or glyphs, or a method of another family: --method grpo"
        return [Usage(what, evidence=f"method.denoise is {denoise}", fix=fix)]
    settings = unfit_settings(recipe) | (of_pipelines if isinstance(shape, PipelineShape) else of_small_models)(recipe)
    errors = [
        Usage(f"{name} does not fit the flow model {recipe.model}", fix=fix)
        for name, (unfit, fix) in settings.items()
        if unfit
    ]
    if isinstance(shape, PipelineShape):
        try:
            sized(shape, recipe.pipeline)
        except Usage as error:
            errors.append(error)
    if denoise is None:
        names = [name for name, module in method_files().items() if ".methods.flow." in module]
        what = f"{recipe.model} is a flow model, and the method trains words: it does not set method.denoise"
        errors.append(Usage(what, fix=f"use a method of the family flow: --method {' or '.join(sorted(names))}"))
    elif denoise.noise.level == 0 and not isinstance(recipe.method.strategy, Retraced):
        what = "no step would be trained: without noise, a denoising step is not an action"
        fix = "set method.denoise.noise.level above 0, or method.strategy to Retraced"
        errors.append(Usage(what, evidence="method.denoise.noise.level is 0", fix=fix))
    elif calm := [step for step in getattr(recipe.method.strategy, "noisy_steps", ()) if not denoise.has_noise(step)]:
        what = f"the strategy needs noise in the denoising steps {calm}, and they have none"
        evidence = f"steps {denoise.first} to {denoise.end - 1} have noise, by method.denoise"
        errors.append(Usage(what, evidence=evidence, fix="take other steps in method.strategy, or set method.denoise"))
    return errors


def unfit_prompts(shape: Sizes, prompts: Iterable[Prompt]) -> list[Usage]:
    """An error if a prompt of a flow model has more or fewer words than the model takes, or tokens of steps."""
    if not isinstance(shape, FlowShape):
        return []
    for prompt in prompts:
        if not shape.takes(prompt.context):
            what = f"a prompt of this flow model has {shape.prompt}"
            fix = "correct the prompt, or use a task that the model was made for"
            return [Usage(what, evidence=f"problem {prompt.id}: {prompt.text[:80]!r}", fix=fix)]
    return []


def unfit_settings(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that flow models do not have, by name: whether the recipe uses them, and what to do instead."""
    denoise = recipe.method.denoise
    steps = 0 if denoise is None else denoise.steps
    return {
        "warm_start": (recipe.warm_start is not None, "leave it out: demonstrations are texts"),
        "environment": (bool(recipe.environment), "leave it out: an environment replies to texts"),
        "engine": (type(recipe.engine) is not Native, "use the engine Native, which denoises"),
        "sampling.temperature": (
            recipe.sampling.temperature != 1,
            "use 1.0; the amount of noise is method.denoise.noise.level",
        ),
        "sampling.max_tokens": (
            recipe.sampling.max_tokens < steps,
            f"use at least {steps}, the number of steps in method.denoise.steps",
        ),
    }


def of_small_models(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that only large networks have."""
    machine = resolved(recipe).machine
    low = f"a clip range of 1e-4 needs log-probs of float32: use --machine.dtype float32, not {machine.dtype}"
    return {
        "machine.dtype": (machine.dtype == "bfloat16", low),
        "machine.compile": (machine.compile, "leave it out: the network has few kernels"),
        "machine.recompute": (machine.recompute, "leave it out: the network has few activations"),
        "lora": (recipe.lora is not None, "leave it out: the network has no layers that take an adapter"),
        "pipeline": (recipe.pipeline != Pipeline(), "leave it out: the model is no pipeline of diffusers"),
    }


def of_pipelines(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that pipelines do not have, or need."""
    denoise, directory = recipe.method.denoise, find_model(recipe.model, weights=False)
    whole = recipe.lora is None and base_directory(directory) == directory
    return {
        "lora = none": (whole, "train an adapter: --lora.rank 16; the weights of a pipeline are not written here"),
        "machine.compile": (recipe.machine.compile, "leave it out: it compiles layers of this package's decoder"),
        "method.denoise.shift": (
            denoise is not None and denoise.shift != 1,
            "leave it out: the times are those of the pipeline's scheduler, which shifts them already",
        ),
    }
