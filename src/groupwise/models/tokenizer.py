"""The tokenizer of a model: text to token ids and back, with the character offset at which each token ends."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import tokenizers

from groupwise.core import BadData, read_regular
from groupwise.models.control_tokens import ControlTokens
from groupwise.models.json_fields import MOST_BYTES, json_object, whole
from groupwise.models.model_json_files import listing, read_json

__all__ = ["Tokenizer"]

# Other tokenizer files of a model directory. They are copied, so that a written model is complete.
EXTRA_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")

# Cache of decoded texts: sequences of at most WINDOW ids, CACHED of them. `decode_with_ends` repeats these often.
WINDOW, CACHED = 4, 1 << 14

UNSETTLED = 64
"""After this many tokens without a complete character, `decode_with_ends` tries to decode less often."""

CACHED_TEXTS = 64
"""Size of the cache of `decode_with_ends`: equal answers of a group often end at the same time."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A model's tokenizer: its `tokenizer.json`, the ids that end an answer, and its other files.

    Text never becomes a control token (`control_tokens`): `<|im_end|>` in a problem is ten characters, and so is a
    `<think>` that the model's chat template writes. End tokens decode to nothing. Other special tokens decode to their
    spelling, so that a verifier sees them.
    """

    tokenizer_json: bytes = field(repr=False)
    eos_ids: frozenset[int]
    extra_files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    backend_tokenizer: tokenizers.Tokenizer = field(init=False, repr=False, compare=False)
    control_tokens: ControlTokens = field(init=False, repr=False, compare=False)
    _text: Callable[[tuple[int, ...]], str] = field(init=False, repr=False, compare=False)
    _with_ends: Callable[[tuple[int, ...]], tuple[str, tuple[int, ...]]] = field(init=False, repr=False, compare=False)
    _template_ids: Callable[[str], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fast = self.parser()
        control = ControlTokens.of(fast, self.eos_ids, chat_templates(self.extra_files))
        control.hide(fast)
        object.__setattr__(self, "backend_tokenizer", fast)
        object.__setattr__(self, "control_tokens", control)
        object.__setattr__(self, "_text", lru_cache(CACHED)(self._decode))
        object.__setattr__(self, "_with_ends", lru_cache(CACHED_TEXTS)(self._decode_with_ends))
        object.__setattr__(self, "_template_ids", lru_cache(CACHED_TEXTS)(self._encode_template))

    @classmethod
    def of(cls, fast: tokenizers.Tokenizer, eos: Iterable[int]) -> "Tokenizer":
        """Create a `Tokenizer` from one that was built in code, with a tokenizer_config.json for transformers."""
        ends = frozenset(eos)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        if ends:
            config["eos_token"] = fast.id_to_token(min(ends))
        return cls(fast.to_str(pretty=True).encode(), ends, ((EXTRA_FILES[0], json.dumps(config, indent=2).encode()),))

    @property
    def digest(self) -> str:
        """SHA-256 of tokenizer.json."""
        return hashlib.sha256(self.tokenizer_json).hexdigest()

    def parser(self) -> tokenizers.Tokenizer:
        """A second tokenizer of the same file, which also finds the special tokens in a text, such as a template's."""
        fast = tokenizers.Tokenizer.from_str(self.tokenizer_json.decode())
        fast.no_truncation()
        fast.no_padding()
        return fast

    @property
    def of_characters(self) -> bool:
        """Whether it splits text into characters, as the packaged models do, which have few longer tokens."""
        if not isinstance(self.backend_tokenizer.model, tokenizers.models.WordLevel):
            return False
        special = {token.content for token in self.backend_tokenizer.get_added_tokens_decoder().values()}
        lengths = [
            len(token) for token in self.backend_tokenizer.get_vocab(with_added_tokens=False) if token not in special
        ]
        return 2 * sum(length == 1 for length in lengths) > len(lengths)

    def encode(self, text: str, *, bos: bool = False) -> tuple[int, ...]:
        """The ids of `text`, none of which is a control token. With `bos`, begin-of-text tokens come first.

        BadData names the first character, or word of a vocabulary of words, that the tokenizer has no token for.
        """
        with self.refusing(text):
            return self.ids(self.control_tokens.encode(self.backend_tokenizer, text), bos=bos)

    def encode_template(self, text: str) -> tuple[int, ...]:
        """The ids of a text that a recipe writes, such as a template's: the control tokens in it are tokens."""
        return self._template_ids(text)

    def _encode_template(self, text: str) -> tuple[int, ...]:
        with self.refusing(text):
            return self.ids(self.control_tokens.encode(self.parser(), "", left=text), bos=False)

    def ids(self, encoding: tokenizers.Encoding, *, bos: bool) -> tuple[int, ...]:
        """The ids of an encoding. With `bos`, the tokenizer's begin-of-text tokens come first (Llama has one)."""
        return tuple((self.backend_tokenizer.post_process(encoding, None, True) if bos else encoding).ids)

    @contextmanager
    def refusing(self, text: str) -> Iterator[None]:
        """Turn the library's exception for a text without tokens into BadData, with the unknown character or word."""
        try:
            yield
        except BadData:
            raise
        except Exception as error:  # the library raises nothing narrower
            unknown = next((piece for piece in self._pieces(text) if not self._encodes(piece)), "")
            kind = "character" if len(unknown) < 2 else "word"
            what = f"the {kind} {unknown!r}" if unknown else "this text"
            near = get_close_matches(unknown, self.backend_tokenizer.get_vocab(), n=3) if kind == "word" else ()
            fix = f"use another model, such as --model DIR, or only {kind}s that this one was trained on"
            fix = f"did you mean {' or '.join(near)}?\n{fix}" if near else fix
            raise BadData(f"the model's tokenizer has no token for {what}", evidence=str(error), fix=fix) from None

    def _pieces(self, text: str) -> Sequence[str]:
        """The parts of a text that get tokens: words if the tokenizer only splits at spaces, else characters."""
        splits = isinstance(self.backend_tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.WhitespaceSplit)
        return (
            text.split() if splits and isinstance(self.backend_tokenizer.model, tokenizers.models.WordLevel) else text
        )

    def _encodes(self, text: str) -> bool:
        try:
            self.control_tokens.encode(self.backend_tokenizer, text)
        except Exception:
            return False
        return True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; invalid bytes become U+FFFD."""
        return self._text(tuple(ids)) if len(ids) <= WINDOW else self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.backend_tokenizer.decode([i for i in ids if i not in self.eos_ids], skip_special_tokens=False)

    def decode_with_ends(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text of `ids`, and for each token the number of characters that are final after it.

        A token that ends within a character (byte-level BPE) completes none; the token with its last byte does. After
        `UNSETTLED` tokens that complete none, such as bytes that are not UTF-8, the next check waits for a quarter more
        tokens.
        """
        return self._with_ends(tuple(ids))

    def _decode_with_ends(self, ids: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        text = self.decode(ids)
        ends, begin, settled, prefix, at, due = [], 0, 0, "", 0, 0
        for i in range(1, len(ids) + 1):
            if i < due:
                ends.append(ends[-1])
                continue
            # Decode together with earlier tokens: some decoders treat the first token differently.
            new = self.decode(ids[begin:i])[len(prefix) :]
            expected = text[at : at + len(new)]
            same = next((j for j, (a, b) in enumerate(zip(new, expected)) if a != b), len(expected))
            ends.append(max([at + same, *ends[-1:]]))
            if new and same == len(new):
                begin, settled, at = settled, i, at + same
                prefix = self.decode(ids[begin:settled])
            elif i - begin > UNSETTLED:  # a check after every token would take quadratic time
                due = i + (i - begin) // 4
        if ends:
            ends[-1] = len(text)
        return text, tuple(ends)

    def save(self, path: Path) -> None:
        """Write tokenizer.json and the other tokenizer files, byte for byte as they were read."""
        path.mkdir(parents=True, exist_ok=True)
        for name, content in (("tokenizer.json", self.tokenizer_json), *self.extra_files):
            (path / name).write_bytes(content)


def chat_templates(extra_files: Iterable[tuple[str, bytes]]) -> list[str]:
    """All chat templates in a tokenizer's files. A damaged file has none here; `find_template` names its fault."""
    files = dict(extra_files)
    templates = [files["chat_template.jinja"].decode(errors="replace")] if "chat_template.jinja" in files else []
    try:
        written = json_object(files.get("tokenizer_config.json", b"{}"), "tokenizer_config.json").get("chat_template")
    except BadData:
        written = None
    named = written if isinstance(written, list) else [{"template": written}]
    found = (each.get("template") for each in named if isinstance(each, dict))
    return [*templates, *(template for template in found if isinstance(template, str))]


def stored_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a directory, with all end tokens. BadData if it is missing or does not fit the model there."""
    if not (path / "tokenizer.json").is_file():
        raise BadData(
            f"{path} has no tokenizer.json",
            evidence=listing(path),
            fix="load it with transformers' AutoTokenizer and call save_pretrained, which writes a tokenizer.json",
        )
    source = read_regular(path / "tokenizer.json", MOST_BYTES)
    extra_files = tuple(
        (name, read_regular(path / name, MOST_BYTES)) for name in EXTRA_FILES if (path / name).is_file()
    )
    eos = end_tokens(path)
    try:
        tokenizer = Tokenizer(source, eos, extra_files)
    except Exception as error:  # the library raises nothing narrower
        raise BadData(
            f"{path / 'tokenizer.json'} is not a tokenizer", evidence=str(error), fix="fetch the file again"
        ) from error
    try:
        size = whole(read_json(path / "config.json"), "vocab_size", low=1, high=1 << 24, default=0)
    except ValueError as error:
        what = f"{path / 'config.json'} describes no vocabulary"
        raise BadData(what, evidence=str(error), fix="fetch the file again") from error
    ids = max(tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=True), *(e + 1 for e in eos))
    if ids > size:
        raise BadData(
            f"the tokenizer in {path} does not fit the model in the same directory",
            evidence=f"ids up to {ids - 1}, vocab_size {size}",
            fix="copy the tokenizer.json that the model was trained with",
        )
    return tokenizer


def end_tokens(path: Path) -> frozenset[int]:
    """Every id that ends an answer: `eos_token_id` of generation_config.json, or else of config.json."""
    for name in ("generation_config.json", "config.json"):
        ends = read_json(path / name).get("eos_token_id") if (path / name).is_file() else None
        if ends is not None and ends != []:
            return _ids(path / name, ends if isinstance(ends, list) else [ends])
    raise BadData(
        f"the model in {path} does not say which token ends an answer",
        evidence="no eos_token_id in generation_config.json or config.json",
        fix='write {"eos_token_id": [...]} into generation_config.json',
    )


def _ids(file: Path, ends: list[object]) -> frozenset[int]:
    """End tokens as token ids. BadData if a value is not a token id."""
    try:
        return frozenset(whole({"eos_token_id": end}, "eos_token_id", low=0, high=(1 << 24) - 1) for end in ends)
    except ValueError as error:
        fix = 'write the ids of the tokens that end an answer: {"eos_token_id": [...]}'
        raise BadData(f"{file} names an end token that is not a token id", evidence=str(error), fix=fix) from error
