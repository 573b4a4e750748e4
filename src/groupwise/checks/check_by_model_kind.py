"""The checks of a recipe that depend on the kind of its model: method and settings, notes, memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.checks.check_classifier import classifier_errors, training_errors
from groupwise.checks.check_flow import flow_errors, language_errors, pipeline_errors
from groupwise.checks.check_machine import attention_note, available_memory, check_pipeline_memory
from groupwise.checks.check_masked import masked_errors, schedule_notes, unmask_errors
from groupwise.checks.check_quantization import quantization_errors
from groupwise.checks.check_vision import tower_errors, vision_errors
from groupwise.config.recipe import Recipe
from groupwise.core import GroupwiseError, Usage
from groupwise.models import DecoderShape
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.planning.run_processes import check_memory

ERRORS: Mapping[str, Callable[[Recipe, Any], list[Usage]]] = {
    "language": language_errors,
    "flow": flow_errors,
    "pipeline": pipeline_errors,
    "masked": masked_errors,
    "classifier": classifier_errors,
    "vision": vision_errors,
}
NOTES: Mapping[str, Callable[[Recipe, Path], list[str]]] = {"masked": schedule_notes}


def kind_errors(recipe: Recipe, shape: ModelSizes) -> list[Usage]:
    """Errors if the method or settings do not fit the kind of the model."""
    if recipe.trains_reward_model:
        return [*training_errors(recipe, shape), *quantization_errors(recipe, shape)]
    errors = [*tower_errors(recipe, shape), *quantization_errors(recipe, shape)]
    return unmask_errors(recipe, shape) or [*errors, *ERRORS[shape.kind_name](recipe, shape)]


def kind_notes(recipe: Recipe, directory: Path, shape: ModelSizes) -> list[str]:
    """Notes about settings that are valid for the model and probably not meant, and about slow attention."""
    notes = NOTES[shape.kind_name](recipe, directory) if shape.kind_name in NOTES else []
    return [*notes, *filter(None, [attention_note(recipe, directory, shape)])]


def memory_line(
    recipe: Recipe, directory: Path, shape: ModelSizes, prompt: int, errors: Sequence[GroupwiseError]
) -> str:
    """The memory that a run needs with prompts of at most `prompt` tokens, as a line for the user; `Usage` if too much.

    Empty for models whose memory is small or not known, and if `errors` make the numbers meaningless.
    """
    if isinstance(shape, DecoderShape) and not any("lora" in error.what for error in errors):
        return check_memory(recipe, shape, prompt, *available_memory(recipe.machine))
    return check_pipeline_memory(recipe, directory) if shape.kind_name == "pipeline" and not errors else ""
