"""Image processors of transformers, built from the settings of a model directory. Code of the directory is refused."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from groupwise.core import BadData, MissingRequirement
from groupwise.data import Picture
from groupwise.models.json_fields import mapping, real, short
from groupwise.models.model_json_files import read_json

FILES = ("processor_config.json", "preprocessor_config.json")
"""The files with the settings of an image processor. The first one, of newer directories, has them in a table."""
ENDINGS = ("", "Fast", "Pil")
"""The endings of an image processor's name in a directory. All name the same preprocessing; ours is that of Pillow."""


def settings_file(path: Path) -> Path:
    """The file with the settings of a directory's image processor."""
    return path / next((name for name in FILES if (path / name).is_file()), FILES[-1])


def stored_settings(file: Path, names: Sequence[str]) -> Mapping[str, Any]:
    """The settings in a file, for an image processor with one of these names. ValueError for another, or with code."""
    stored = read_json(file)
    settings = mapping(stored, "image_processor") if "image_processor" in stored else stored
    for table in (settings, stored):
        if table.get("auto_map"):
            raise ValueError(f"it brings its own code, which is never executed: auto_map {short(table['auto_map'])}")
    kind = settings.get("image_processor_type", names[0])
    if kind not in [f"{name}{ending}" for name in names for ending in ENDINGS]:
        raise ValueError(f"image_processor_type is {short(kind)}: it must be {names[0]}")
    return settings


@lru_cache(8)
def library_processor(library_class: str, settings: str) -> Any:
    """The image processor of transformers with these settings, as JSON. `MissingRequirement` without Pillow."""
    import transformers

    try:
        return getattr(transformers, f"{library_class}Pil")(**json.loads(settings))
    except ImportError as error:
        fix = "pip install 'groupwise[pictures]'"
        raise MissingRequirement("pictures need the package pillow", evidence=str(error), fix=fix) from None


def three_numbers(settings: Mapping[str, Any], name: str, *, low: float) -> list[float]:
    """A number for each channel. KeyError if there is none, ValueError for another value."""
    values = settings[name]
    if not isinstance(values, list) or len(values) != 3:
        raise ValueError(f"{name} is {short(values)}: it must be three numbers")
    return [real({name: value}, name, low=low, high=1e3) for value in values]


def replace_placeholders(
    text: str, placeholder: str, pictures: Sequence[Picture], spelled: Callable[[Picture], str]
) -> str:
    """A rendered prompt with each placeholder that its template wrote replaced by the text of a picture.

    BadData if there are not as many as pictures.
    """
    before, *after = text.split(placeholder)
    if len(after) != len(pictures):
        what = f"the template writes {len(after)} placeholders for {len(pictures)} pictures"
        fix = 'give each picture a content part {"type": "image"}, and check that the chat template writes them'
        raise BadData(what, fix=fix)
    return before + "".join(spelled(picture) + part for picture, part in zip(pictures, after))
