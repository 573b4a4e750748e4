"""What engine and learner share: the decoder, its checkpoints and tokenizer, the law of sampling, keyed randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from groupwise.models.keyed import Key, Purpose, keyed_random, lineage, permutation, philox, picks, uniform

if TYPE_CHECKING:
    from groupwise.models.checkpoint import read_model, read_shape, weight_files, write_model
    from groupwise.models.decoder import Decoder, Shape
    from groupwise.models.files import find_model
    from groupwise.models.layout import Shared, attention
    from groupwise.models.sampling import choose, log_law, truncated
    from groupwise.models.templates import Messages, Template, find_template
    from groupwise.models.tokenizer import Tokenizer, read_tokenizer

__all__ = [
    "Decoder",
    "Key",
    "Messages",
    "Purpose",
    "Shape",
    "Shared",
    "Template",
    "Tokenizer",
    "attention",
    "choose",
    "find_model",
    "find_template",
    "keyed_random",
    "lineage",
    "log_law",
    "permutation",
    "philox",
    "picks",
    "read_model",
    "read_shape",
    "read_tokenizer",
    "truncated",
    "uniform",
    "weight_files",
    "write_model",
]


def __getattr__(name: str) -> Any:
    """All but random numbers when it is asked for: it brings torch, which what only reads files does without."""
    if name in __all__:
        for file in ("checkpoint", "decoder", "files", "layout", "sampling", "templates", "tokenizer"):
            if name in (found := vars(import_module(f"{__name__}.{file}"))):
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
