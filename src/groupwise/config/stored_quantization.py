"""The quantisation of a recipe whose model directory stores weights in 4 bits."""

from dataclasses import replace
from pathlib import Path

from groupwise.config.recipe import Recipe
from groupwise.models import stored_quantization


def with_stored_quantization(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe with the quantisation of its model's `directory`, if it sets none; an adapter's is that of its base.

    A plan and checks need it; `read_model` finds it again.
    """
    quantization = recipe.machine.quantization or stored_quantization(directory)
    return replace(recipe, machine=replace(recipe.machine, quantization=quantization))
