"""Prompts of a pipeline as token ids: the bytes of their text, which the pipeline's own tokenizers read again."""

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from groupwise.models.flow.velocity_network import END

__all__ = ["byte_tokenizer", "prompt_text"]


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A token for each denoising step, an end token, and one for each byte. It loses nothing of a text.

    >>> ids = byte_tokenizer().encode("Aé").ids
    >>> ids, prompt_text(ids)
    ([130, 260, 234], 'Aé')
    """
    special = [*(f"<{step}>" for step in range(END)), "<end>"]
    alphabet = {token: END + 1 + byte for byte, token in enumerate(byte_characters())}
    fast = tokenizers.Tokenizer(models.BPE({**{token: i for i, token in enumerate(special)}, **alphabet}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return fast


def byte_characters() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself if it is printable Latin-1, else another."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    codes = {byte: byte for byte in printable} | {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(codes[byte]) for byte in range(256)]


def prompt_text(words: Sequence[int]) -> str:
    """The text of a prompt's words, without the end tokens that fill a row."""
    return bytes(word - (END + 1) for word in words if word != END).decode(errors="replace")
