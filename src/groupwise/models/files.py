"""Model directories: finding them, and reading their JSON."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.data import BadData, visible
from groupwise.models.fields import MOST_BYTES, json_object, text
from groupwise.models.hub import fetched, is_hub_name

__all__ = ["base_directory", "base_name", "commit_of", "find_model", "of_hub", "own_code"]

PACKAGED = ("calculator", "blank")
ADAPTER = "adapter_config.json"
"""What a directory holds that is not a model but an adapter (LoRA) for one."""


def find_model(name: str | Path, *, weights: bool = True) -> Path:
    """The directory of a model: a packaged one by its bare name, a path, or `owner/name` of the Hugging Face hub.

    Of the hub, all but the weights is fetched where they are not wanted. BadData or Environment if it is not to be had.
    """
    if str(name) in PACKAGED:
        return Path(__file__).parent / str(name)
    path = Path(name)
    if os.path.isdir(path):  # unlike Path's, false for a name that no file system takes
        return path
    if of_hub(name):
        return fetched(str(name), weights=weights)
    fix = f"give the path of a directory, owner/name of the Hugging Face hub, or one of: {', '.join(PACKAGED)}"
    raise BadData(
        f"there is no model at {name}", evidence="a file" if os.path.isfile(path) else "no such directory", fix=fix
    )


def base_directory(path: Path) -> Path:
    """The directory with the weights: of an adapter its base, else its own. BadData if that base is not there."""
    if not os.path.isfile(path / ADAPTER):
        return path
    base = base_name(path)
    try:
        found = find_model(base)
    except BadData as error:
        fix = f"set base_model_name_or_path in {path / ADAPTER} to where the model lies that it was trained on"
        raise BadData(f"the base of the adapter in {path} is not there", evidence=visible(base), fix=fix) from error
    if (found / ADAPTER).is_file():
        what, fix = (
            f"the base of the adapter in {path} is itself an adapter",
            f"groupwise merge {found} A_NEW_DIRECTORY",
        )
        raise BadData(what, evidence=visible(base), fix=fix)
    return found


def base_name(name: str | Path) -> str:
    """The name by which a model's weights are found from anywhere: an adapter's own word, a hub name, or a path."""
    found = find_model(name)
    if (found / ADAPTER).is_file():
        config = read_json(found / ADAPTER)
        try:
            base, revision = text(config, "base_model_name_or_path"), text(config, "revision")
            if not base:
                raise ValueError("base_model_name_or_path is missing or empty")
        except ValueError as error:
            fix = "write the name or the path of the model that the adapter was trained on"
            raise BadData(f"{found / ADAPTER} names no base", evidence=str(error), fix=fix) from error
        return f"{base}@{revision}" if revision and is_hub_name(base) else base
    return str(name) if commit_of(name) else str(found.resolve())


def commit_of(name: str | Path) -> str:
    """The commit at which a model of the hub was fetched; empty for one that is not of the hub."""
    return find_model(name).name if of_hub(name) else ""


def of_hub(name: str | Path) -> bool:
    """Whether a name means a model of the hub: nothing of that name is here."""
    return is_hub_name(name) and not os.path.exists(name)


def own_code(path: Path) -> dict[str, str]:
    """The Python files of a model that brings its own code, each with its SHA-256; empty for one that does not."""
    path = base_directory(path)
    if not read_json(path / "config.json").get("auto_map"):
        return {}
    return {str(p.relative_to(path)): sha256(p.read_bytes()).hexdigest() for p in sorted(path.rglob("*.py"))}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. BadData if there is none, or none within the bounds of `json_object`."""
    if not path.is_file():
        raise BadData(
            f"{path.parent} has no {path.name}",
            evidence=listing(path.parent),
            fix="give a directory in the Hugging Face layout: config.json, tokenizer.json, model.safetensors",
        )
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error.strerror), fix="fetch the file again") from error
    return json_object(content, path)


def listing(path: Path) -> str:
    """The first names in a directory, as evidence on one line."""
    if not os.path.isdir(path):
        return "no such directory"
    return "it holds " + (", ".join(visible(p.name) for p in sorted(path.iterdir())[:8]) or "nothing")
