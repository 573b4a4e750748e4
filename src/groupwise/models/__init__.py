"""What engine and learner share: the decoder, its checkpoints and tokenizer, the law of sampling, keyed randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from groupwise.models.keyed import Key, Purpose, keyed_random, lineage, permutation, philox, picks, uniform

if TYPE_CHECKING:
    from groupwise.models.blocks import blocked, forget
    from groupwise.models.checkpoint import (
        Model,
        outline,
        read_model,
        read_shape,
        stored_dtype,
        write_fresh,
        write_model,
    )
    from groupwise.models.decoder import Decoder, Shape
    from groupwise.models.files import base_directory, base_name, commit_of, find_model, of_hub, own_code
    from groupwise.models.layout import Shared
    from groupwise.models.lora import Lora, adapted, attach, check_targets, load_peft, merge, write_adapter
    from groupwise.models.packed_attention import attention, past
    from groupwise.models.routing import Experts, Routes, experts_of
    from groupwise.models.sampling import choose, logprob_dtype, logprobs, truncated
    from groupwise.models.templates import Messages, Template, conversation_turn, encode_answer, find_template
    from groupwise.models.tokenizer import Tokenizer, read_tokenizer
    from groupwise.models.weights import fingerprint, weight_files

__all__ = [
    "Decoder",
    "Experts",
    "Key",
    "Lora",
    "Messages",
    "Model",
    "Purpose",
    "Routes",
    "Shape",
    "Shared",
    "Template",
    "Tokenizer",
    "adapted",
    "attach",
    "attention",
    "base_directory",
    "base_name",
    "blocked",
    "check_targets",
    "choose",
    "commit_of",
    "conversation_turn",
    "encode_answer",
    "experts_of",
    "find_model",
    "find_template",
    "fingerprint",
    "forget",
    "keyed_random",
    "lineage",
    "load_peft",
    "logprob_dtype",
    "logprobs",
    "merge",
    "of_hub",
    "outline",
    "own_code",
    "past",
    "permutation",
    "philox",
    "picks",
    "read_model",
    "read_shape",
    "read_tokenizer",
    "stored_dtype",
    "truncated",
    "uniform",
    "weight_files",
    "write_adapter",
    "write_fresh",
    "write_model",
]


FILES = (
    "blocks", "checkpoint", "decoder", "files", "layout", "lora", "packed_attention", "routing", "sampling",
    "templates", "tokenizer", "weights",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """All but random numbers when it is asked for: it brings torch, which what only reads files does without."""
    if name in __all__:
        for file in FILES:
            if name in (found := vars(import_module(f"{__name__}.{file}"))):
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
