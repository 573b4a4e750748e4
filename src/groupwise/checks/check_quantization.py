"""Checks that a recipe fits a model whose weights are in 4 bits."""

from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.data import takes_quantized_base
from groupwise.models import base_directory, find_model, refuse_quantization
from groupwise.models.decoder.decoder import ModelSizes


def quantization_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors if the model has no layers in 4 bits here, or settings do not go with them."""
    if not recipe.machine.quantization:
        return []
    try:
        refuse_quantization(recipe.model, shape)
    except Usage as error:
        return [error]
    return [
        Usage(f"weights in 4 bits are frozen, and do not go with {name}", fix=fix)
        for name, (unfit, fix) in unfit_settings(recipe).items()
        if unfit
    ]


def unfit_settings(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that do not go with weights in 4 bits, by name: whether the recipe uses them, and what to do."""
    directory = find_model(recipe.model, weights=False)
    whole = recipe.lora is None and base_directory(directory) == directory
    plain = "take the model without machine.quantization"
    return {
        "a reward model, which is written with whole layers": (recipe.trains_reward_model, plain),
        "training without an adapter": (
            whole and not recipe.trains_reward_model,
            f"train an adapter: --lora.rank 16\nto train all weights, {plain}",
        ),
        "machine.compile": (recipe.machine.compile, "leave --machine.compile out"),
        "native engines in other processes": (
            not takes_quantized_base(recipe.engine),
            "use the engine in this process: --engine.kind Native\nor vLLM, with merged weights: --engine.kind Vllm",
        ),
    }
