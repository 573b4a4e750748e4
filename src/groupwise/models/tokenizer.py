"""Text to token ids and back, with the character at which each token ends."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import tokenizers

from groupwise.data import BadData
from groupwise.models.fields import whole
from groupwise.models.files import base_directory, listing, read_json

# What else a directory may hold that belongs to its tokenizer; carried along so that the written model is complete.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")

# Texts of runs so short are remembered, so many of them: `read` asks for the same ones over and over.
WINDOW, REMEMBERED = 4, 1 << 14

UNSETTLED = 64
"""Tokens in a row without a settled character, of which each is looked at. A character has at most four bytes."""

READINGS = 64
"""Whole readings that are remembered: answers of a group that are the same end at the same moment."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A `tokenizer.json`, the ids that end an answer, and the files that go with it.

    Text is never searched for special tokens: `<|im_end|>` in a problem is ten characters. End tokens have no text;
    other special tokens show theirs, so that a verifier sees what was written.
    """

    source: bytes = field(repr=False)
    eos: frozenset[int]
    beside: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    fast: tokenizers.Tokenizer = field(init=False, repr=False, compare=False)
    _text: Callable[[tuple[int, ...]], str] = field(init=False, repr=False, compare=False)
    _read: Callable[[tuple[int, ...]], tuple[str, tuple[int, ...]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fast = tokenizers.Tokenizer.from_str(self.source.decode())
        fast.no_truncation()
        fast.no_padding()
        fast.encode_special_tokens = True
        object.__setattr__(self, "fast", fast)
        object.__setattr__(self, "_text", lru_cache(REMEMBERED)(self._decoded))
        object.__setattr__(self, "_read", lru_cache(READINGS)(self._ends))

    @classmethod
    def of(cls, fast: tokenizers.Tokenizer, eos: Iterable[int]) -> "Tokenizer":
        """A tokenizer made in code, with the configuration by which transformers loads it."""
        ends = frozenset(eos)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        if ends:
            config["eos_token"] = fast.id_to_token(min(ends))
        return cls(fast.to_str(pretty=True).encode(), ends, ((BESIDE[0], json.dumps(config, indent=2).encode()),))

    @property
    def digest(self) -> str:
        """SHA-256 of tokenizer.json."""
        return hashlib.sha256(self.source).hexdigest()

    def encode(self, text: str, *, opens: bool = False) -> tuple[int, ...]:
        """The ids of `text`. `opens` puts before them what the tokenizer says a text begins with (Llama's BOS).

        BadData names the first character that the tokenizer has no token for.
        """
        return self.encode_by(self.fast, text, opens=opens)

    def encode_by(self, fast: tokenizers.Tokenizer, text: str, *, opens: bool) -> tuple[int, ...]:
        """As `encode`, by another setting of the same tokenizer, such as one that searches for special tokens."""
        try:
            return tuple(fast.encode(text, add_special_tokens=opens).ids)
        except Exception as error:  # the library raises nothing narrower
            strange = next((c for c in text if not self._knows(c)), None)
            what = "this text" if strange is None else f"the character {strange!r}"
            fix = "use the characters that the model was trained on, or another model"
            raise BadData(f"the model's tokenizer has no token for {what}", evidence=str(error), fix=fix) from None

    def _knows(self, text: str) -> bool:
        try:
            self.fast.encode(text, add_special_tokens=False)
        except Exception:
            return False
        return True

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no character become U+FFFD."""
        return self._text(tuple(ids)) if len(ids) <= WINDOW else self._decoded(ids)

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.fast.decode([i for i in ids if i not in self.eos], skip_special_tokens=False)

    def read(self, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The text of `ids`, and for each token how many characters of it are settled once that token is there.

        A token that ends within a character (byte-level BPE) settles nothing; the one that completes it does. After
        `UNSETTLED` tokens in a row that settle nothing, such as bytes that are no text, that is seen a quarter later.
        """
        return self._read(tuple(ids))

    def _ends(self, ids: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        text = self.decode(ids)
        ends, begin, settled, shown, at, due = [], 0, 0, "", 0, 0
        for i in range(1, len(ids) + 1):
            if i < due:
                ends.append(ends[-1])
                continue
            # Decoded behind its predecessors, for there are decoders that treat the first token differently.
            new = self.decode(ids[begin:i])[len(shown) :]
            rest = text[at : at + len(new)]
            same = next((j for j, (a, b) in enumerate(zip(new, rest)) if a != b), len(rest))
            ends.append(max([at + same, *ends[-1:]]))
            if new and same == len(new):
                begin, settled, at = settled, i, at + same
                shown = self.decode(ids[begin:settled])
            elif (
                i - begin > UNSETTLED
            ):  # looked at after every token, such a run would take time that grows as its square
                due = i + (i - begin) // 4
        if ends:
            ends[-1] = len(text)
        return text, tuple(ends)

    def save(self, path: Path) -> None:
        """Write tokenizer.json and what goes with it, byte for byte as it was read."""
        path.mkdir(parents=True, exist_ok=True)
        for name, content in (("tokenizer.json", self.source), *self.beside):
            (path / name).write_bytes(content)


def read_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a model directory and all its end tokens. BadData if it has none, or does not fit the model."""
    path = base_directory(Path(path))
    if not (path / "tokenizer.json").is_file():
        raise BadData(
            f"{path} has no tokenizer.json",
            evidence=listing(path),
            fix="load it once with transformers' AutoTokenizer and save_pretrained, which writes a tokenizer.json",
        )
    source = (path / "tokenizer.json").read_bytes()
    beside = tuple((name, (path / name).read_bytes()) for name in BESIDE if (path / name).is_file())
    eos = end_tokens(path)
    try:
        tokenizer = Tokenizer(source, eos, beside)
    except Exception as error:  # the library raises nothing narrower
        raise BadData(
            f"{path / 'tokenizer.json'} is no tokenizer", evidence=str(error), fix="fetch the file again"
        ) from error
    try:
        size = whole(read_json(path / "config.json"), "vocab_size", low=1, high=1 << 24, default=0)
    except ValueError as error:
        what = f"{path / 'config.json'} describes no vocabulary"
        raise BadData(what, evidence=str(error), fix="fetch the file again") from error
    needs = max(tokenizer.fast.get_vocab_size(with_added_tokens=True), *(e + 1 for e in eos))
    if needs > size:
        raise BadData(
            f"the tokenizer in {path} does not fit the model beside it",
            evidence=f"ids up to {needs - 1}, vocab_size {size}",
            fix="copy the tokenizer.json that the model was trained with",
        )
    return tokenizer


def end_tokens(path: Path) -> frozenset[int]:
    """Every id that ends an answer: of generation_config.json if it names any, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        ends = read_json(path / name).get("eos_token_id") if (path / name).is_file() else None
        if ends is not None and ends != []:
            return _ids(path / name, ends if isinstance(ends, list) else [ends])
    raise BadData(
        f"{path} names no end token",
        evidence="no eos_token_id in generation_config.json or config.json",
        fix='write {"eos_token_id": [...]} into generation_config.json',
    )


def _ids(file: Path, ends: list[object]) -> frozenset[int]:
    """End tokens as token ids. BadData for any other value."""
    try:
        return frozenset(whole({"eos_token_id": end}, "eos_token_id", low=0, high=(1 << 24) - 1) for end in ends)
    except ValueError as error:
        fix = 'write the ids of the tokens that end an answer: {"eos_token_id": [...]}'
        raise BadData(f"{file} names an end token that is no token id", evidence=str(error), fix=fix) from error
