"""Tokenizers of the packaged models, in the format of Hugging Face's `tokenizers`: nearly all ids are one character."""

import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["END", "blank_tokenizer", "calculator_tokenizer", "flow_tokenizer", "masked_tokenizer"]

CHARACTERS = "0123456789+-*=;#"
PRINTABLE = "".join(map(chr, range(0x20, 0x7F))) + "\n"
WORDS = (
    "```python\n", "\n```", "def ", "return ",
    "<tool_call>", '{"name": "calculate", "arguments": {"expression": "', '"}}', "</tool_call>",
    "<tool_response>\n", "\n</tool_response>",
)  # fmt: skip
"""Strings that are one token each in the packaged model `blank`. None is a prefix of another."""
PAD, END = "<pad>", "<end>"


def calculator_tokenizer() -> Tokenizer:
    """Sixteen characters, a pad token and an end token that closes an answer. Both special tokens decode to nothing.

    >>> tokenizer = calculator_tokenizer()
    >>> tokenizer.encode("7*5=35;#").ids, tokenizer.decode([1, 13, 7])
    ([9, 14, 7, 15, 5, 7, 16, 17], '-5')
    """
    return _tokenizer((), CHARACTERS)


def blank_tokenizer() -> Tokenizer:
    """The printable ASCII characters, the newline, and a few strings as one token each.

    >>> tokenizer = blank_tokenizer()
    >>> tokenizer.encode("def f(x): return 2").tokens
    ['def ', 'f', '(', 'x', ')', ':', ' ', 'return ', '2']
    """
    return _tokenizer(WORDS, PRINTABLE)


def flow_tokenizer(words: Sequence[str], steps: int) -> Tokenizer:
    """The tokenizer of a flow model: a token for each of `steps` denoising steps, an end token, and words.

    >>> tokenizer = flow_tokenizer(("dark", "red"), steps=2)
    >>> tokenizer.encode("red dark").ids, tokenizer.decode([0, 1], skip_special_tokens=False)
    ([4, 3], '<0><1>')
    """
    special = [*(f"<{step}>" for step in range(steps)), END]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate((*special, *words))}, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def masked_tokenizer(symbols: Sequence[str], words: Sequence[str], steps: int) -> Tokenizer:
    """The tokenizer of a masked model: a token for the knobs of each of `steps` steps, an end token, a commit and a
    token of each symbol, and words. Knobs and commits decode to nothing.

    >>> tokenizer = masked_tokenizer(("r", "g"), ("mirror",), steps=2)
    >>> tokenizer.encode("mirror").ids, tokenizer.decode([0, 4, 1, 3, 5, 6], skip_special_tokens=False)
    ([7], 'rg')
    """
    special = [*(f"<{step}>" for step in range(steps)), END, *(f"<{symbol}>" for symbol in symbols)]
    vocabulary = {token: i for i, token in enumerate((*special, *symbols, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("^<[^>]+>$"), ""), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return tokenizer


def _tokenizer(words: Sequence[str], characters: str) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate((PAD, END, *words, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    pattern = "|".join((*map(re.escape, words), r"[\s\S]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END)])
    return tokenizer
