"""Reads the index and the sizes of a pipeline from its JSON files, and refuses pipelines that cannot be trained here.

Layout of diffusers: model_index.json names the class of each part, and each part has a folder with its own files.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from groupwise.core import BadData, MissingRequirement
from groupwise.models.code_loading_settings import code_settings
from groupwise.models.diffusion.flux import FluxFamily
from groupwise.models.diffusion.pipeline_family import PipelineFamily
from groupwise.models.diffusion.pipeline_shape import PipelineShape
from groupwise.models.diffusion.scheduler_settings import refuse_scheduler
from groupwise.models.diffusion.stable_diffusion_3 import StableDiffusion3Family
from groupwise.models.json_fields import LARGEST, real, short
from groupwise.models.model_json_files import listing, read_json

__all__ = ["INDEX", "is_pipeline", "pipeline_family", "pipeline_files", "pipeline_index", "pipeline_shape"]

INDEX = "model_index.json"
FAMILIES: tuple[PipelineFamily, ...] = (StableDiffusion3Family(), FluxFamily())
PARTS = {name for family in FAMILIES for name in (*family.required_parts, *family.optional_parts)}
"""The folders that are read of a pipeline."""
OF_DIFFUSERS = ("transformer", "scheduler", "vae")
"""The parts whose classes are in diffusers; the classes of the others are in transformers."""
ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
WITH_WEIGHTS = ("transformer", "vae", *ENCODERS)
VIDEO = ("video", "wan", "mochi", "ltx", "hunyuan", "cogvideo", "transformer3d", "allegro", "latte")
"""Parts of the names of classes that make videos."""
FROM_PICTURES = ("kontext", "fill", "control", "img2img", "inpaint", "redux", "edit")
"""Parts of the names of classes that make pictures from pictures."""


def is_pipeline(path: Path) -> bool:
    """Whether a directory has the index of a pipeline."""
    return os.path.isfile(path / INDEX)


def pipeline_family(path: Path) -> PipelineFamily:
    """The family of the pipeline in a directory, by its class. BadData for a class that cannot be trained here."""
    index = read_json(path / INDEX)
    kind = index.get("_class_name")
    if family := next((family for family in FAMILIES if family.pipeline_class == kind), None):
        return family
    name, names = str(kind).lower(), " ".join(map(str, (kind, *classes(index).values()))).lower()
    if any(word in names for word in VIDEO):
        what, why = f"the pipeline in {path} makes videos", "states have frames, which no verifier and no report reads"
    elif any(word in name for word in FROM_PICTURES):
        what = f"pipelines of the class {short(kind)} make pictures from pictures"
        why = "a prompt is text alone here"
    else:
        what, why = f"pipelines of the class {short(kind)} are not supported", "each has other arguments and latents"
    known = " or ".join(family.pipeline_class for family in FAMILIES)
    raise BadData(f"{what}: {why}", evidence=f"{path / INDEX}", fix=f"use a pipeline of the class {known}")


def classes(index: dict[str, Any]) -> dict[str, str]:
    """The class of each part that an index names. A class and its `Fast` variant are the same tokenizer."""
    return {name: str(entry[1]).removesuffix("Fast") for name, entry in entries(index).items()}


def entries(index: dict[str, Any]) -> dict[str, Any]:
    """The package and the class of each part that an index names."""
    return {name: entry for name, entry in index.items() if isinstance(entry, list) and len(entry) == 2 and entry[1]}


def pipeline_index(path: Path) -> dict[str, str]:
    """The class of each part of a pipeline that is there. BadData for a pipeline that cannot be trained here.

    `MissingRequirement` without diffusers.
    """
    family, index = pipeline_family(path), read_json(path / INDEX)
    parts, known = classes(index), {**family.required_parts, **family.optional_parts}
    if (scheduler := parts.get("scheduler")) != family.required_parts["scheduler"]:
        what = f"the scheduler of the pipeline in {path} is no flow matching by Euler steps"
        fix = f"use a checkpoint that was trained by flow matching, with a {family.required_parts['scheduler']}"
        raise BadData(what, evidence=f"scheduler: {short(scheduler)}", fix=fix)
    differences = [
        f"{name}: {short(parts.get(name))}"
        for name, wanted in known.items()
        if (name in parts or name in family.required_parts) and parts.get(name) != wanted
    ]
    differences += [
        f"{name}: of the package {short(entry[0])}"  # diffusers would import it
        for name, entry in entries(index).items()
        if name in known and entry[0] != ("diffusers" if name in OF_DIFFUSERS else "transformers")
    ]
    if differences:
        what = f"the pipeline in {path} lacks parts, or has others than {family.pipeline_class}"
        raise BadData(
            what,
            evidence=", ".join(differences),
            fix="fetch the whole directory again: hf download NAME --local-dir DIR",
        )
    wanted = {name: parts[name] for name in known if name in parts}
    refuse_missing(path, wanted)
    refuse_code(path, wanted)
    refuse_scheduler(path)
    if find_spec("diffusers") is None:
        what = f"{path} is a pipeline, which needs diffusers"
        raise MissingRequirement(what, fix="pip install 'groupwise[diffusion]'")
    return wanted


def pipeline_shape(path: Path) -> PipelineShape:
    """The sizes of the pipeline in a directory. BadData for one that cannot be trained here, as in `pipeline_index`."""
    pipeline_index(path)
    transformer, vae = read_json(path / "transformer" / "config.json"), read_json(path / "vae" / "config.json")
    family = pipeline_family(path)
    try:
        family.prompt_tokens(path)
        real(vae, "scaling_factor", low=1e-6)
        real(vae, "shift_factor", low=-LARGEST)
        return family.shape(transformer, vae)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the configurations of transformer, vae and tokenizers in {path} do not describe a pipeline"
        evidence = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise BadData(what, evidence=evidence, fix="fetch the directory again") from error


def refuse_missing(path: Path, parts: dict[str, str]) -> None:
    """BadData if a part of a pipeline has no folder, or no safetensors although it has weights."""
    for name in parts:
        if not os.path.isdir(path / name):
            fix = "fetch the whole directory: hf download NAME --local-dir DIR, then --model DIR"
            raise BadData(f"the pipeline in {path} lacks its part {name}", evidence=listing(path), fix=fix)
        if name in WITH_WEIGHTS and not list((path / name).glob("*.safetensors")):
            what = f"the part {name} of the pipeline in {path} has no safetensors; pickles are never loaded"
            fix = "fetch it again, or load it where you trust it and call save_pretrained(DIR, safe_serialization=True)"
            raise BadData(what, evidence=listing(path / name), fix=fix)


def refuse_code(path: Path, parts: dict[str, str]) -> None:
    """BadData if the configuration of a part names code to load."""
    for file in (path / name / "config.json" for name in WITH_WEIGHTS if name in parts):
        if named := code_settings(read_json(file)):
            what = f"the configuration of a part of the pipeline in {path} names code, which is never loaded"
            evidence = f"{file}: {', '.join(map(short, named))}"
            raise BadData(what, evidence=evidence, fix="remove these settings, if the model computes the same without")


def pipeline_files(path: Path, *suffixes: str) -> list[Path]:
    """The files with these endings in the folders of a pipeline's parts, and its index."""
    index: dict[str, Any] = read_json(path / INDEX)
    folders = [path / name for name in sorted(index) if name in PARTS and os.path.isdir(path / name)]
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.is_file()]
    return [file for file in (path / INDEX, *files) if file.name.endswith(suffixes)]
