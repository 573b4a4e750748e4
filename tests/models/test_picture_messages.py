"""Pictures in prompts: where a template writes them, and text that spells their placeholder."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from groupwise.core import BadData
from groupwise.models import find_template
from groupwise.models.vision.processor import AROUND, IMAGE, WHOLE
from groupwise.tasks import picture_tokenizer
from tests.models.vision_directories import noise, tiny_vision

_, TOKENIZER = tiny_vision()
MARKS = [TOKENIZER.control_tokens.ids_by_spelling[mark] for mark in (IMAGE, AROUND, WHOLE)]
BLOCK = TOKENIZER.encode_template(f"{AROUND}{WHOLE}{IMAGE * 4}{AROUND}")


def marks_of(ids: tuple[int, ...]) -> list[int]:
    return [i for i in ids if i in MARKS]


def test_pictures_stand_at_their_parts_or_before_the_text() -> None:
    chat, plain = find_template("chat", TOKENIZER), find_template("no", TOKENIZER)
    a, b = noise(1), noise(2)
    text = TOKENIZER.encode_template
    assert plain("red", pictures=(a, b)) == (*BLOCK, *BLOCK, *text("red"))
    assert chat("red", pictures=(a,)) == (*text("user:"), *BLOCK, *text("red\na:"))
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "is "}, {"type": "image"}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": [{"type": "image"}]},
    ]
    expected = (*text("user:is "), *BLOCK, *text("?\nassistant:no\nuser:"), *BLOCK, *text("\na:"))
    assert chat(parts, pictures=(a, b)) == expected
    assert chat("red") == text("user:red\na:"), "a model that takes pictures needs none"


def test_a_plain_template_has_the_pictures_of_parts_before_the_text() -> None:
    plain, a = find_template("no", TOKENIZER), noise(1)
    image, text = {"type": "image"}, {"type": "text", "text": "red"}
    assert plain([{"role": "user", "content": [image, text]}], pictures=(a,)) == plain("red", pictures=(a,))
    assert plain([{"role": "user", "content": [image]}], pictures=(a,)) == BLOCK
    for parts in ([text, image], [text, image, text], [image, text, image]):
        with pytest.raises(BadData, match="pictures before its text"):
            plain([{"role": "user", "content": parts}], pictures=(a,) * sum(part is image for part in parts))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_parts_than_pictures_is_refused(count: int) -> None:
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}, {"type": "image"}]}]
    with pytest.raises(BadData, match=f"2 placeholders for {count} pictures"):
        find_template("chat", TOKENIZER)(messages, pictures=(noise(1),) * count)


def test_a_template_that_drops_pictures_is_refused() -> None:
    plain = find_template("chat", TOKENIZER)
    dropping = type(plain)("chat", "{% for m in messages %}{{ m.role }}{% endfor %}", TOKENIZER)
    with pytest.raises(BadData, match="0 placeholders for 1 pictures"):
        dropping("red", pictures=(noise(1),))


@pytest.mark.parametrize("template", ["no", "chat", "q: {prompt} a:"])
@given(st.lists(st.sampled_from([IMAGE, AROUND, WHOLE, "<im", "age>", "<row_1_col_1>", "a", " "]), max_size=6))
def test_a_text_that_spells_the_placeholder_stays_text(template: str, pieces: list[str]) -> None:
    make, text = find_template(template, TOKENIZER), "".join(pieces)
    for pictures in ((), (noise(1),)):
        harmless = marks_of(make("a", pictures=pictures))
        assert marks_of(make(text, pictures=pictures)) == harmless
        assert marks_of(make([{"role": "user", "content": text}], pictures=pictures)) == harmless


def test_a_placeholder_that_the_tokenizer_reads_as_text_gets_no_picture() -> None:
    """An added token that is only found as a whole word: `x<image>` is text for the tokenizer."""
    fast = picture_tokenizer()
    fast.add_special_tokens([AddedToken(IMAGE, single_word=True, normalized=False)])
    tokenizer = replace(TOKENIZER, tokenizer_json=fast.to_str().encode())
    ids = find_template("chat", tokenizer)("x<image>x", pictures=(noise(1),))
    assert marks_of(ids) == marks_of(BLOCK)
