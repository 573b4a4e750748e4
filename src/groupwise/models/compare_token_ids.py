"""Compares Groupwise's token ids with AutoTokenizer's, which does not always follow tokenizer.json."""

from collections.abc import Iterable
from pathlib import Path

from groupwise.models.decoder.transformers_files import quiet
from groupwise.models.model_directories import base_directory
from groupwise.models.tokenizer import Tokenizer

__all__ = ["different_ids"]


def different_ids(path: Path, tokenizer: Tokenizer, texts: Iterable[str]) -> str:
    """A message about the first text that AutoTokenizer encodes differently; empty if none, or if not comparable.

    transformers 5 builds the tokenizers of some model types from their vocabulary, whatever tokenizer.json says.
    """
    from transformers import AutoTokenizer

    try:
        with quiet():
            other = AutoTokenizer.from_pretrained(base_directory(path), local_files_only=True, trust_remote_code=False)
            for text in texts:
                ids, theirs = tokenizer.encode(text), tuple(other.encode(text, add_special_tokens=False))
                if ids != theirs:
                    return f"{text[:40]!r} has {len(ids)} ids here and {len(theirs)} there"
    except Exception:  # transformers raises any exception; without its tokenizer there is nothing to compare
        return ""
    return ""
