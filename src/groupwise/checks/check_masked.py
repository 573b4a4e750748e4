"""Checks that a recipe's method and settings fit its masked model."""

from pathlib import Path

from groupwise.checks.check_flow import methods_with
from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.core import Usage
from groupwise.engines import Native
from groupwise.models import MaskedShape, PipelineSettings, stored_unmask
from groupwise.models.decoder.decoder import ModelSizes


def unmask_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """An error if the method is for masked models, and the model is of another kind."""
    unmask = recipe.method.unmask
    if unmask is None or shape.kind_name == MaskedShape.kind_name:
        return []
    what = f"the method unmasks, and {recipe.model} is a {shape.kind_label}: it has no canvas of masked cells"
    fix = "use a masked model: --model beads, or a method of another family: --method grpo"
    return [Usage(what, evidence=f"method.unmask is {unmask}", fix=fix)]


def masked_errors(recipe: Recipe, shape: MaskedShape) -> list[Usage]:
    """Errors if the method is not for masked models, or settings do not fit them."""
    unmask, denoise = recipe.method.unmask, recipe.method.denoise
    errors = [
        Usage(f"{name} does not fit the masked model {recipe.model}", fix=fix)
        for name, (unfit, fix) in unfit_settings(recipe, shape).items()
        if unfit
    ]
    if denoise is not None or unmask is None:
        what = f"{recipe.model} is a masked model, and the method does not set method.unmask"
        if denoise is not None:
            what = f"{recipe.model} is a masked model, and the method is for flow models: it sets method.denoise"
        fix = f"use --method {methods_with('unmask')}, or another one with a fixed schedule: --method.unmask.steps 4"
        errors.append(Usage(what, fix=fix))
    return errors


def schedule_notes(recipe: Recipe, directory: Path) -> list[str]:
    """A note if a run discards the schedule of a masked model, which had a spread and so may be trained. Else none."""
    if (unmask := recipe.method.unmask) is None:
        return []
    stored = stored_unmask(directory)
    if stored.is_fixed or unmask.continues(stored):
        return []
    start = f"steps = {stored.steps}, temperature = {stored.temperature:g}, knob_std = {stored.knob_std:g}"
    what = f"the schedule of {recipe.model} is discarded, with all that it has learned: method.unmask has another start"
    return [f"  note: {what}; to keep it, set method.unmask to {start} and a speed above 0"]


def unfit_settings(recipe: Recipe, shape: MaskedShape) -> dict[str, tuple[bool, str]]:
    """Settings that masked models do not have, by name: whether the recipe uses them, and what to do instead."""
    method, machine = recipe.method, resolved(recipe).machine
    longest = 0 if method.unmask is None else shape.longest(method.unmask.steps)
    return {
        "warm_start": (recipe.warm_start is not None, "leave it out: demonstrations are texts, read left to right"),
        "environment": (bool(recipe.environment), "leave it out: an environment replies to texts"),
        "agent": (recipe.agent is not None, "leave it out: an agent continues its answers"),
        "engine": (type(recipe.engine) is not Native, "use the engine Native, which unmasks"),
        "sampling.temperature": (
            recipe.sampling.temperature != 1,
            "use 1.0; the temperature of the steps is method.unmask.temperature",
        ),
        "sampling.max_tokens": (
            recipe.sampling.max_tokens < longest,
            f"use at least {longest}: the most tokens of an answer in method.unmask.steps steps",
        ),
        "method.strategy": (
            not getattr(method.strategy, "works_on_whole_answers", False),
            "use AnswerAndScheduleStrategy or Independent: answers are generated whole",
        ),
        "evaluate.strategy": (
            not getattr(recipe.evaluate.strategy, "works_on_whole_answers", False),
            "use AnswerAndScheduleStrategy or Independent: answers are generated whole",
        ),
        "evaluate.denoising_steps": (
            recipe.evaluate.denoising_steps is not None,
            "leave it out: it is for flow models",
        ),
        "machine.dtype": (machine.dtype == "bfloat16", "use float32: the model is small"),
        "machine.compile": (machine.compile, "leave it out: the network has few kernels"),
        "machine.gradient_checkpointing": (
            machine.gradient_checkpointing,
            "leave it out: the network has few activations",
        ),
        "lora": (recipe.lora is not None, "leave it out: the network has no layers that take an adapter"),
        "pipeline": (recipe.pipeline != PipelineSettings(), "leave it out: the model is no pipeline of diffusers"),
    }
