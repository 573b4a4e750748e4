"""Model directories: finding them, and reading their JSON."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from groupwise.data import BadData
from groupwise.models.hub import fetched, is_hub_name

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
    if path.is_dir():
        return path
    if of_hub(name):
        return fetched(str(name), weights=weights)
    fix = f"give the path of a directory, owner/name of the Hugging Face hub, or one of: {', '.join(PACKAGED)}"
    raise BadData(f"there is no model at {name}", evidence="a file" if path.is_file() else "no such directory", fix=fix)


def base_directory(path: Path) -> Path:
    """The directory with the weights: of an adapter its base, else its own. BadData if that base is not there."""
    if not (path / ADAPTER).is_file():
        return path
    base = base_name(path)
    try:
        found = find_model(base)
    except BadData as error:
        fix = f"set base_model_name_or_path in {path / ADAPTER} to where the model lies that it was trained on"
        raise BadData(f"the base of the adapter in {path} is not there", evidence=base, fix=fix) from error
    if (found / ADAPTER).is_file():
        what, fix = (
            f"the base of the adapter in {path} is itself an adapter",
            f"groupwise merge {found} A_NEW_DIRECTORY",
        )
        raise BadData(what, evidence=base, fix=fix)
    return found


def base_name(name: str | Path) -> str:
    """The name by which a model's weights are found from anywhere: an adapter's own word, a hub name, or a path."""
    found = find_model(name)
    if (found / ADAPTER).is_file():
        told = read_json(found / ADAPTER)
        base, revision = str(told.get("base_model_name_or_path")), told.get("revision")
        return f"{base}@{revision}" if revision and is_hub_name(base) else base
    return str(name) if commit_of(name) else str(found.resolve())


def commit_of(name: str | Path) -> str:
    """The commit at which a model of the hub was fetched; empty for one that is not of the hub."""
    return find_model(name).name if of_hub(name) else ""


def of_hub(name: str | Path) -> bool:
    """Whether a name means a model of the hub: nothing of that name is here."""
    return is_hub_name(name) and not Path(name).exists()


def own_code(path: Path) -> dict[str, str]:
    """The Python files of a model that brings its own code, each with its SHA-256; empty for one that does not."""
    path = base_directory(path)
    if not read_json(path / "config.json").get("auto_map"):
        return {}
    return {str(p.relative_to(path)): sha256(p.read_bytes()).hexdigest() for p in sorted(path.rglob("*.py"))}


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. BadData if there is none."""
    if not path.is_file():
        raise BadData(
            f"{path.parent} has no {path.name}",
            evidence=listing(path.parent),
            fix="give a directory in the Hugging Face layout: config.json, tokenizer.json, model.safetensors",
        )
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadData(f"{path} is not JSON", evidence=str(error), fix="fetch the file again") from error
    if not isinstance(value, dict):
        raise BadData(f"{path} holds no JSON object", evidence=type(value).__name__, fix="fetch the file again")
    return value


def listing(path: Path) -> str:
    """What a directory holds, as evidence."""
    if not path.is_dir():
        return "no such directory"
    return "it holds " + (", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing")
