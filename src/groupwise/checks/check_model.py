"""Checks of a recipe's model directory, its adapter and its other models."""

from pathlib import Path

from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import GroupwiseError, Usage
from groupwise.data import all_problems
from groupwise.engines import Served
from groupwise.learner import FromDirectory, check_routing, routes_experts
from groupwise.models import (
    Tokenizer,
    base_directory,
    check_targets,
    different_ids,
    experts_of,
    find_model,
    load_bitsandbytes,
    load_peft,
    of_hub,
    outline,
    read_shape,
    weight_files,
)
from groupwise.training.build_run import RunInputs, check_engine, check_vocabulary


def check_model(recipe: Recipe, directory: Path, use: UserCode, *, weights: bool) -> None:
    """Check the shape of the model in a directory, its routers, and that the recipe's adapter fits it.

    Raises a `GroupwiseError`.
    """
    read_shape(directory, trust_remote_code=use.trust_remote_code)
    if isinstance(recipe.engine, Served):
        outlined = outline(directory, trust_remote_code=use.trust_remote_code)
        check_engine(recipe, outlined, experts_of(outlined), use.engine_access)
    if routes_experts(recipe.method.router_replay, recipe.method.auxiliary):
        outlined = outline(directory, trust_remote_code=use.trust_remote_code)
        check_routing(recipe.method.router_replay, recipe.method.auxiliary, experts_of(outlined))
    if recipe.machine.quantization:
        load_bitsandbytes()
    if recipe.lora is None:
        return
    if base_directory(directory) != directory:
        what, fix = f"the model in {directory} is itself an adapter", "remove lora to train this adapter"
        raise Usage(what, fix=f"{fix}\nor merge it first: groupwise merge {directory} NEW_DIRECTORY")
    if weights and not weight_files(directory):
        what = f"the model {recipe.model} has no weights: its random weights would stay frozen under an adapter"
        raise Usage(what, fix="remove lora to train all weights")
    check_targets(outline(directory, trust_remote_code=use.trust_remote_code), recipe.lora)
    load_peft()


def check_side_models(recipe: Recipe, tokenizer: Tokenizer, *, fetch: bool) -> list[GroupwiseError]:
    """Errors of the models (reference, teacher) in directories: missing, unreadable, or with another vocabulary."""
    errors: list[GroupwiseError] = []
    for name, part in recipe.method.models_in_use:
        if not isinstance(part, FromDirectory):
            continue
        weights = fetch or not of_hub(part.directory)
        try:
            directory = find_model(part.directory, weights=weights)
            read_shape(directory)
            if weights:
                weight_files(directory)
            check_vocabulary(name, directory, tokenizer)
        except GroupwiseError as error:
            error.what = f"method.models.{name}: {error.what}"
            errors.append(error)
    return errors


def other_ids(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """A note if transformers' tokenizer of the user's model gives other token ids than ours, for the first problems."""
    if not Path(recipe.model).is_dir():
        return []
    texts = [prompt.text for prompt, _ in zip(all_problems(inputs.task), range(4))]
    difference = different_ids(Path(recipe.model), inputs.tokenizer, texts)
    what = f"transformers' AutoTokenizer does not follow {recipe.model}/tokenizer.json"
    return [f"  warning: {what}: {difference}"] if difference else []
