"""First models: packaged models trained again with another seed, so that a verdict covers more than one of them."""

from dataclasses import replace
from pathlib import Path

from benchmarks.atlas.file_locks import lock
from tools import flow_models, packaged_model

from groupwise.config.recipe_toml import read
from groupwise.models import Model, Tokenizer, write_model

TOOLS = Path(packaged_model.__file__).parent


def first_model(name: str, seed: int, folder: Path) -> str | Path:
    """The packaged model `name`, trained with another seed into a folder, once; other processes wait.

    A model without weights, and one that no tool of the repository trains, stays: there the warm start alone differs.
    """
    if name not in {*packaged_model.PAIRS, *flow_models.MODELS}:
        return name
    directory = folder / f"{name}-{seed}"
    with lock(folder / f"{name}-{seed}.lock"):
        if not directory.is_dir():
            unfinished = directory.with_suffix(".unfinished")
            model, tokenizer = trained(name, seed)
            write_model(model, unfinished, tokenizer=tokenizer)
            unfinished.rename(directory)
    return directory


def trained(name: str, seed: int) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer, trained as the packaged one, with another seed."""
    if name in flow_models.MODELS:
        return flow_models.train(replace(flow_models.MODELS[name], seed=seed))
    recipe = read(packaged_model.PackagedModel, TOOLS / f"{name}_model.toml")
    return packaged_model.train(replace(recipe, seed=seed))
