"""Reads the JSON files of a model directory."""

import os
from pathlib import Path
from typing import Any

from groupwise.core import BadData, read_regular, visible
from groupwise.models.json_fields import MOST_BYTES, json_object

ADAPTER = "adapter_config.json"
"""The configuration file of an adapter (LoRA); a directory with it holds an adapter, not a model."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. BadData if it is missing or unreadable, or refused by `json_object`."""
    if not path.is_file():
        raise BadData(
            f"{path.parent} has no {path.name}",
            evidence=listing(path.parent),
            fix="give a directory in the Hugging Face layout: config.json, tokenizer.json, model.safetensors",
        )
    return json_object(read_regular(path, MOST_BYTES), path)


def listing(path: Path) -> str:
    """The first names in a directory, as evidence on one line."""
    if not os.path.isdir(path):
        return "no such directory"
    return "it holds " + (", ".join(visible(p.name) for p in sorted(path.iterdir())[:8]) or "nothing")
