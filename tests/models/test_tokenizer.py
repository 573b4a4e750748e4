"""The tokenizer: exact character ends, several end tokens, and user text without special tokens."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.core import BadData
from groupwise.models import Tokenizer, read_tokenizer
from tests.models.directories import bytes_, characters, directory, pieces
from tests.models.test_checkpoint import change

BYTES, PIECES = bytes_(), pieces()
TEXT = st.text(alphabet="héa b日本語😀=+1\n", max_size=20)


def settled(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Reference for the ends: decode every prefix and compare it with the whole text."""
    text, ends = tokenizer.decode(ids), []
    for i in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:i])
        ends.append(next((j for j, (a, b) in enumerate(zip(prefix, text)) if a != b), min(len(prefix), len(text))))
    return [*accumulate(ends[:-1], max), len(text)] if ids else []


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
@settings(max_examples=60)
@given(text=TEXT)
def test_ends_are_the_characters_that_each_token_completes(tokenizer: Tokenizer, text: str) -> None:
    ids, end = tokenizer.encode(text), min(tokenizer.eos_ids)
    assert tokenizer.decode_with_ends([*ids, end]) == (text, (*settled(tokenizer, list(ids)), len(text)))


def test_a_character_in_several_tokens_ends_with_the_last() -> None:
    ids = BYTES.encode("a€")  # three bytes that were never merged
    assert len(ids) == 4
    assert BYTES.decode_with_ends(ids) == ("a€", (1, 1, 1, 2))


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
@settings(max_examples=60)
@given(ids=st.lists(st.integers(2, 260), max_size=20))
def test_ends_of_any_tokens_rise_to_the_length_of_the_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    text, ends = tokenizer.decode_with_ends(ids)
    assert text == tokenizer.decode(ids)
    assert list(ends) == sorted(ends)
    # With sentence pieces, one invalid byte turns its whole run of bytes into U+FFFD, so earlier text can change.
    assert tokenizer is PIECES or all(end <= most for end, most in zip(ends, settled(tokenizer, ids)))
    assert not ids or ends[-1] == len(text)


def test_characters_end_one_by_one() -> None:
    tokenizer = characters()
    assert tokenizer.decode_with_ends([*tokenizer.encode("7*5=35;#35"), 0]) == (
        "7*5=35;#35",
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10),
    )
    assert tokenizer.decode_with_ends([]) == ("", ())


def test_special_tokens_in_user_text_are_text() -> None:
    ids = BYTES.encode("a<|im_end|>b<|end|>")
    assert not BYTES.eos_ids & set(ids)
    assert BYTES.decode(ids) == "a<|im_end|>b<|end|>"


def test_end_tokens_decode_to_nothing_and_other_special_tokens_to_their_spelling() -> None:
    one_end = Tokenizer(BYTES.tokenizer_json, frozenset({0}))
    assert one_end.decode([*one_end.encode("a"), 1, 0]) == "a<|im_end|>"


def test_a_tokenizer_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    directory(tmp_path / "model")
    read = read_tokenizer(tmp_path / "model")
    read.save(tmp_path / "copy")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert read.digest == characters().digest != BYTES.digest


@pytest.mark.t(14)
def test_all_end_tokens_are_read(tmp_path: Path) -> None:
    directory(tmp_path)
    change(tmp_path, "generation_config.json", eos_token_id=[3, 5])
    change(tmp_path, eos_token_id=3)
    assert read_tokenizer(tmp_path).eos_ids == {3, 5}
    (tmp_path / "generation_config.json").unlink()
    assert read_tokenizer(tmp_path).eos_ids == {3}
    change(tmp_path, eos_token_id=None)
    with pytest.raises(BadData, match="does not say which token ends an answer"):
        read_tokenizer(tmp_path)


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    directory(tmp_path)
    change(tmp_path, vocab_size=10)
    with pytest.raises(BadData, match="does not fit the model"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadData, match="is not a tokenizer"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BadData, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)
