"""Checks that a recipe's method and settings fit its model: a masked model, or another one."""

from groupwise.config.devices import resolved
from groupwise.config.recipe import Recipe
from groupwise.data import Usage
from groupwise.models import FlowShape, MaskedShape, Pipeline
from groupwise.models.decoder import Sizes
from groupwise.rollout import CoSampled, Independent, Native
from groupwise.training.check_flow import flow_errors


def kind_errors(recipe: Recipe, shape: Sizes) -> list[Usage]:
    """Errors if the method or settings do not fit the kind of the model: of words, flow or masked."""
    masked = isinstance(shape, MaskedShape) or recipe.method.unmask is not None
    return masked_errors(recipe, shape) if masked else flow_errors(recipe, shape)


def masked_errors(recipe: Recipe, shape: Sizes) -> list[Usage]:
    """Errors if the method does not fit the kind of the model, or settings are not available for masked models."""
    unmask, denoise = recipe.method.unmask, recipe.method.denoise
    if not isinstance(shape, MaskedShape):
        if unmask is None:
            return []
        kind = "a flow model" if isinstance(shape, FlowShape) else "a language model"
        what = f"the method unmasks, and {recipe.model} is {kind}: it has no canvas of masked cells"
        fix = "use a masked model: --model beads, or a method of another family: --method grpo"
        return [Usage(what, evidence=f"method.unmask is {unmask}", fix=fix)]
    errors = [
        Usage(f"{name} does not fit the masked model {recipe.model}", fix=fix)
        for name, (unfit, fix) in unfit_settings(recipe, shape).items()
        if unfit
    ]
    if denoise is not None or unmask is None:
        what = f"{recipe.model} is a masked model, and the method does not set method.unmask"
        if denoise is not None:
            what = f"{recipe.model} is a masked model, and the method is for flow models: it sets method.denoise"
        fix = "use --method co_grpo; for another method and a fixed schedule, set method.unmask = { steps = 4 }"
        errors.append(Usage(what, fix=fix))
    return errors


def unfit_settings(recipe: Recipe, shape: MaskedShape) -> dict[str, tuple[bool, str]]:
    """Settings that masked models do not have, by name: whether the recipe uses them, and what to do instead."""
    method, machine = recipe.method, resolved(recipe).machine
    longest = 0 if method.unmask is None else shape.longest(method.unmask.steps)
    strategies = CoSampled | Independent
    return {
        "warm_start": (recipe.warm_start is not None, "leave it out: demonstrations are texts, read left to right"),
        "environment": (bool(recipe.environment), "leave it out: an environment replies to texts"),
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
            not isinstance(method.strategy, strategies),
            "use CoSampled or Independent: answers are generated whole",
        ),
        "evaluate.strategy": (
            not isinstance(recipe.evaluate.strategy, strategies),
            "use CoSampled or Independent: answers are generated whole",
        ),
        "evaluate.steps": (recipe.evaluate.steps is not None, "leave it out: it is for flow models"),
        "machine.dtype": (machine.dtype == "bfloat16", "use float32: the model is small"),
        "machine.compile": (machine.compile, "leave it out: the network has few kernels"),
        "machine.recompute": (machine.recompute, "leave it out: the network has few activations"),
        "lora": (recipe.lora is not None, "leave it out: the network has no layers that take an adapter"),
        "pipeline": (recipe.pipeline != Pipeline(), "leave it out: the model is no pipeline of diffusers"),
    }
