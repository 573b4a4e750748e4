"""Settings of a configuration by which transformers and diffusers load code: of the directory, or of a hub."""

from collections.abc import Iterator
from typing import Any

CODE = ("attn_implementation", "experts_implementation", "auto_map", "kernel", "quantization", "compression")
"""Parts of the names of such settings."""
AUTOSET = "_autoset"
"""The end of the name of a flag that older transformers write beside the attention; it loads nothing."""


def code_settings(config: Any) -> list[str]:
    """The names of the settings that load code, at any depth of a configuration.

    >>> code_settings({"text_config": [{"auto_map": {}}], "hidden_size": 8})
    ['auto_map']
    """
    return [key for key in keys_of(config) if any(word in key for word in CODE) and not key.endswith(AUTOSET)]


def keys_of(value: Any) -> Iterator[str]:
    """The keys of all tables of a JSON value, also those inside others.

    >>> [*keys_of({"text_config": [{"auto_map": {}}]})]
    ['text_config', 'auto_map']
    """
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key
        yield from keys_of(inner)
    for inner in value if isinstance(value, list) else ():
        yield from keys_of(inner)
