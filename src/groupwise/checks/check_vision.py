"""Checks that a recipe fits its vision-language model."""

from groupwise.checks.check_flow import language_errors
from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.vision.vision_model import VisionSizes


def tower_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """An error if the recipe freezes a vision tower, and its model has none."""
    if not recipe.freeze_vision_tower or shape.kind_name == VisionSizes.kind_name:
        return []
    what = f"freeze_vision_tower does not fit {recipe.model}: it is a {shape.kind_label} without a vision tower"
    return [Usage(what, fix="leave it out, or use a vision-language model")]


def vision_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors if the method is for other models, or settings do not go with a vision-language model yet."""
    errors = [
        Usage(f"{name} does not go with the vision-language model {recipe.model} yet", fix=fix)
        for name, (unfit, fix) in unfit_settings(recipe).items()
        if unfit
    ]
    return [*language_errors(recipe, shape), *errors]


def unfit_settings(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Settings that vision-language models do not have, by name: whether the recipe uses them, and what to do."""
    return {"agent": (recipe.agent is not None, "leave it out: its requests are texts")}
