"""The packaged tokenizers: one id per character, in every library that reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.models import Tokenizer
from groupwise.tasks import Calculator, blank_tokenizer, calculator_tokenizer, demonstrations
from groupwise.tasks.packaged_tokenizers import CHARACTERS, PRINTABLE, WORDS

TOKENIZER, BLANK = calculator_tokenizer(), blank_tokenizer()
END = TOKENIZER.token_to_id("<end>")


@given(st.text(alphabet=CHARACTERS))
def test_round_trip_with_one_id_per_character(text: str):
    ids = TOKENIZER.encode(text).ids
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert "".join(TOKENIZER.decode([i]) for i in ids) == text


@given(st.lists(st.integers(0, 17)))
def test_any_ids_decode_character_by_character(ids: list[int]):
    letter = ["", "", *CHARACTERS]
    assert TOKENIZER.decode(ids) == "".join(letter[i] for i in ids)


def test_ids_are_stable():
    assert TOKENIZER.get_vocab() == {t: i for i, t in enumerate(("<pad>", "<end>", *"0123456789+-*=;#"))}


def test_end_and_pad_decode_to_nothing():
    assert TOKENIZER.decode([END]) == TOKENIZER.decode([TOKENIZER.token_to_id("<pad>")]) == ""
    assert TOKENIZER.decode([END], skip_special_tokens=False) == "<end>"


@pytest.mark.parametrize("text", ["7 * 5=", "x", "7\n", "７"])
def test_an_unknown_character_is_refused(text: str):
    with pytest.raises(Exception, match="Missing"):
        TOKENIZER.encode(text)


def test_all_problems_and_answers_can_be_written():
    task = Calculator().build(lambda text: tuple(TOKENIZER.encode(text).ids))
    assert TOKENIZER.decode(list(task[5].token_ids)) == task[5].text
    for problem, answer in demonstrations(0, 200, 0.5):
        assert TOKENIZER.decode(TOKENIZER.encode(problem + answer).ids) == problem + answer


@pytest.mark.parametrize("loader", ["AutoTokenizer", "PreTrainedTokenizerFast"])
def test_transformers_reads_the_same_tokenizer(tmp_path, loader: str):
    import transformers

    Tokenizer.of(TOKENIZER, [END]).save(tmp_path)
    theirs = getattr(transformers, loader).from_pretrained(tmp_path)
    text = "7*5+8-9+3=7*5=35;35+8=43;43-9=34;34+3=37;#37"
    assert theirs(text).input_ids == TOKENIZER.encode(text).ids
    assert theirs.decode([*theirs(text).input_ids, END], skip_special_tokens=True) == text
    assert (theirs.eos_token_id, len(theirs)) == (END, 18)
    assert theirs.is_fast


def test_the_packaged_tokenizer_has_one_character_per_token():
    ours = Tokenizer.of(TOKENIZER, [END])
    ids = ours.encode("34+3=37;#37")
    assert ours.decode_with_ends((*ids, END)) == ("34+3=37;#37", (*range(1, 12), 11))


@given(st.lists(st.sampled_from([*WORDS, *PRINTABLE])).map("".join))
def test_blank_reads_any_printable_text_back(text: str):
    assert BLANK.decode(BLANK.encode(text).ids) == text


@pytest.mark.parametrize("word", WORDS)
def test_words_are_one_token_at_any_position(word: str):
    assert BLANK.encode(word).tokens == [word]
    assert BLANK.encode(f"1{word}2{word}").tokens == ["1", word, "2", word]
    assert BLANK.encode(word[:-1]).tokens == list(word[:-1])


@pytest.mark.parametrize("text", ["\t", "é", "\x00"])
def test_blank_refuses_characters_without_a_token(text: str):
    with pytest.raises(Exception, match="Missing"):
        BLANK.encode(text)
