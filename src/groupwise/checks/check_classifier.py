"""Checks that a recipe trains a reward model on a model that can be one, and generates nothing with one."""

from groupwise.config.recipe import Recipe
from groupwise.config.task_sources import sources
from groupwise.core import Usage
from groupwise.models import DecoderShape
from groupwise.models.decoder.decoder import ModelSizes

TEMPLATES = ("no", "chat")
"""The templates in which the verifier `RewardModel` renders problems, too."""


def classifier_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """The error of a method that trains a policy, where the model is a reward model."""
    what = f"{recipe.model} is a reward model: it scores texts, and generates none"
    fix = "use a language model; to score answers by this one: --verifier.kind RewardModel --verifier.path DIR"
    return [Usage(what, fix=f"{fix}\nto train it further: --method bradley_terry")]


def training_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors of a recipe that trains a reward model: its model, verifier or template do not fit."""
    errors = []
    if not isinstance(shape, DecoderShape):
        what = f"{recipe.model} cannot be trained as a reward model: its layers are not those of the decoder here"
        errors.append(
            Usage(what, fix="use a Qwen2, Qwen3, Llama or Mistral model, or a reward model of these families")
        )
    if recipe.verifier is not None:
        what = "a reward model generates no answers, and the recipe has a verifier for generated ones"
        errors.append(Usage(what, fix="leave the verifier out: the held-out pairs are evaluated without one"))
    if others := sorted({source.template for source in sources(recipe)} - set(TEMPLATES)):
        what = (
            f"a reward model is trained in the template {others[0]!r}, which the verifier RewardModel does not render"
        )
        errors.append(Usage(what, fix="use --template no or --template chat"))
    return errors
