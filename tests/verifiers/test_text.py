"""The verifiers text, choice, format, regex and json_schema: right, wrong, malformed and unverifiable answers."""

import asyncio
import json
import os
import re
import string
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.core import BadData, MissingRequirement, Usage
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.tasks import RowsTask
from groupwise.verifiers.normalise_text import plain_text
from tests.verifiers.built import built

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable
needs_jsonschema = pytest.mark.skipif(find_spec("jsonschema") is None, reason="jsonschema is not installed")


def ask(verifier: Verifier, text: str, gold: Any = None) -> Verdict:
    call = verifier(Prompt("p", (), "p", {"answer": gold}), Sample(context=(), stream=(0,), text=text))
    return asyncio.run(call)


@pytest.fixture
def named():
    opened = []

    def find(name: Any) -> Verifier:
        opened.append(built(name, None))
        return opened[-1]

    yield find
    for verifier in opened:
        getattr(verifier, "close", lambda: None)()


WRITTEN = [
    ("text", " The  Eiffel tower!", "eiffel tower", RIGHT),
    ("text", "Eiffel", "eiffel tower", WRONG),
    ("text", "ﬁne", "fine", RIGHT),
    ("text", "ii", ["i", "II"], RIGHT),
    ("text", "34", 34, RIGHT),
    ("text", "a", "A", RIGHT),
    ("text", " .! ", "x", MALFORMED),
    ("text", "x", True, UNKNOWN),
    ({"kind": "text", "match_case": True}, "X", "x", WRONG),
    ({"kind": "text", "match_articles": True}, "the x", "x", WRONG),
    ({"kind": "text", "match_punctuation": True}, "x!", "x", WRONG),
    ({"kind": "text", "answer_location": "line"}, "long story. Answer: Paris", "paris", RIGHT),
    ({"kind": "text", "answer_location": "line"}, "Paris", "paris", MALFORMED),
    ("option_choice", "so the answer is (B).", "B", RIGHT),
    ("option_choice", r"\boxed{\text{B}}", "B", RIGHT),
    ("option_choice", "Answer: b", "B", RIGHT),
    ("option_choice", "Answer: B) because A is wrong", "B", MALFORMED),
    ("option_choice", "Answer: B) because it floats\nExplanation: A is wrong", "B", RIGHT),
    ({"kind": "option_choice", "option_letters": "ABCDEFGHIJ"}, "Answer: (J) because I counted", "J", RIGHT),
    ({"kind": "option_choice", "option_letters": "ABCDEFGHIJ"}, "Answer: (J) or I", "J", MALFORMED),
    ({"kind": "option_choice", "option_letters": "1234"}, "Answer: 2. 3", "2", MALFORMED),
    ({"kind": "option_choice", "option_letters": "1234"}, "Answer: (2) 12", "2", RIGHT),
    ({"kind": "option_choice", "which_answer": "only"}, "Answer: B. It floats.\n\nAnswer: B", "B", RIGHT),
    ("option_choice", "B", "(B)", RIGHT),
    ("option_choice", "Answer: C", 2, RIGHT),
    ("option_choice", "Answer: A or B", "B", MALFORMED),
    ("option_choice", "Answer: A, B", "B", MALFORMED),
    ("option_choice", "Answer: (A) or (B)", "A", MALFORMED),
    ("option_choice", "Answer: (A) orange", "A", RIGHT),
    ("option_choice", r"\boxed{\textbf{(C)}\ 12}", "C", RIGHT),
    ("option_choice", "Answer: A dog", "A", MALFORMED),
    ("option_choice", "A first thought: it may be B", "B", MALFORMED),
    ("option_choice", "Answer: E", "B", MALFORMED),
    ({"kind": "option_choice", "option_letters": "ABCDE"}, "Answer: E", "E", RIGHT),
    ({"kind": "option_choice", "option_letters": "1234"}, "Answer: 2", "2", RIGHT),
    ({"kind": "option_choice", "which_answer": "first"}, "Answer: A\nAnswer: B", "B", WRONG),
    ("option_choice", "Answer: B", "E", UNKNOWN),
    ("option_choice", "Answer: B", 4, UNKNOWN),
    ("tag_format", "<think>2+2</think>\n<answer>4</answer>\n", None, RIGHT),
    ("tag_format", "<answer>4</answer><think>2+2</think>", None, WRONG),
    ("tag_format", "<think>2+2</think><answer> </answer>", None, WRONG),
    ("tag_format", "<think>2+2</think> hm <answer>4</answer>", None, WRONG),
    ("tag_format", "<think>2+2</think><answer>4</answer> bye", None, WRONG),
    ("tag_format", "<think>2</think><think>2</think><answer>4</answer>", None, WRONG),
    ("tag_format", "<think>2<answer>4</answer></think>", None, WRONG),
    ("tag_format", "<think>a<answer>b</think>c</answer>", None, WRONG),
    ("tag_format", "2+2</think><answer>4</answer>", None, WRONG),
    ({"kind": "tag_format", "first_tag_in_prompt": True}, "2+2</think><answer>4</answer>", None, RIGHT),
    ({"kind": "tag_format", "tags": ["plan"]}, "<plan>x</plan>", None, RIGHT),
]


UNEQUAL = [
    ("1.5", "15"), ("-5", "5"), ("3/4", "34"), ("10^3", "103"), ("x+y", "xy"), ("C++", "C"), ("C#", "C"), (".5", "5"),
    ("-.5", "5"), ("-$5", "$5"), ("\u22125", "5"), ("10\u00b3", "103"), ("3\u00bd", "31/2"), ("1:2", "12"),
    ("x < 5", "x > 5"), ("x+y", "x-y"), ("3 - 4", "3 4"), ("1,5", "15"), ("1990-1995", "19901995"), ("a*b", "ab"),
    ("A+", "A"), ("101_2", "1012"), ("2^n", "2n"), ("x = -5", "x = 5"), ("3.14.15", "31415"), ("C++", "C+"),
    ("1/2", "1.2"), ("n+1", "n1"), ("x/y", "xy"), ("a + b", "a b"), ("(1,2)", "(12)"), ("F#", "F"),
]  # fmt: skip
"""Pairs of values that SQuAD's form does not tell apart, or that differ in a sign alone."""
EQUAL = [
    ("eiffel tower", " The  Eiffel tower!"), ("ac/dc", "ACDC"), ("u.s.", "US"), ("1,000", "1000"), ("5", "5."),
    ("1,234,567", "1234567"), ("5", "(5)"), ("-5", "\u22125"), ("-5", "(-5)"), ("3/4", "3 / 4"), ("x+y", "x + y"),
    ("t-shirt", "tshirt"), ("B-52", "B52"), ("3-D", "3D"), ("covid-19", "COVID19"), ("5", "**5**"), ("5", "$5"),
    ("5", "+5"), ("50", "50%"), ("1.5", "1.5."), ("10^3", "10\u00b3"), ("3 1/2", "3\u00bd"), ("x-ray", "Xray"),
    ("1990-1995", "1990\u20131995"), ("don't", "dont"), ("mother-in-law", "motherinlaw"), ("c++", '"C++",'),
    ("5", "- 5"), ("a", "A"), ("x<5", "x < 5"), ("rock and roll", "'Rock' and roll"), ("e.g.", "eg"),
]  # fmt: skip
"""Ways to write the same, in words and in numbers."""


@pytest.mark.parametrize("gold,text", UNEQUAL)
def test_a_sign_that_changes_a_value_counts(gold: str, text: str, named):
    assert ask(named("text"), text, gold).outcome is ask(named("text"), gold, text).outcome is WRONG


@pytest.mark.parametrize("gold,text", EQUAL)
def test_other_punctuation_does_not_count(gold: str, text: str, named):
    assert ask(named("text"), text, gold).outcome is ask(named("text"), gold, text).outcome is RIGHT


@given(
    st.fractions(max_denominator=99),
    st.fractions(max_denominator=99),
    st.sampled_from(["{}/{}", "{}.{}", "{}^{}", "{}:{}"]),
)
def test_different_numbers_have_different_forms(first: Fraction, second: Fraction, form: str):
    texts = [form.format(x.numerator, x.denominator) for x in (first, second)]
    assert (plain_text(texts[0]) == plain_text(f"The ({texts[1]}).")) == (first == second)


@given(
    st.lists(
        st.sampled_from(
            ["The", "an", "Eiffel", "tower's", "sea-side", "and/or", "(big)", "no.", '"ok"', "*so*", "--", "it;"]
        )
    )
)
def test_words_have_the_form_of_squad(words: list[str]):
    text = " ".join(words)
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    squad = " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
    assert plain_text(text) == (squad or " ".join(bare.split()))


INVISIBLE = ["\u200b", "\ufeff\u2060", "\u00ad", "\u200b \u0301\ufe0f", "\u202e\u200f", "\U000e0041", "\u2028"]


@pytest.mark.parametrize("text", INVISIBLE)
def test_an_answer_without_a_visible_character_is_empty(text: str, named):
    verdict = ask(named("tag_format"), f"<think>2+2</think><answer>{text}</answer>")
    assert verdict.outcome is WRONG and verdict.feedback == "<answer> is empty"
    assert ask(named("text"), text, "4").outcome is MALFORMED and ask(named("text"), "4", text).outcome is UNKNOWN
    assert ask(named("tag_format"), f"<think>2+2</think><answer>{text}4</answer>").outcome is RIGHT


@pytest.mark.parametrize("name,text,gold,outcome", WRITTEN)
def test_verdicts_on_texts(name: str, text: str, gold: Any, outcome: Outcome, named):
    assert ask(named(name), text, gold).outcome is outcome


@given(st.text(max_size=200), st.text(max_size=20))
@settings(max_examples=40)
def test_no_text_raises(text: str, gold: str):
    for name in ("text", "option_choice", "tag_format"):
        assert ask(built(name, None), text, gold).outcome in Outcome


def test_a_huge_text_is_judged_quickly(named):
    for name in ("text", "option_choice", "tag_format"):
        assert ask(named(name), "<think>" + "(A" * 5_000_000, "A").outcome in (WRONG, MALFORMED)


def test_regex(named):
    assert ask(named("regex"), "so 12 cm", r"\b12\b").outcome is RIGHT
    whole = named({"kind": "regex", "match_whole_text": True})
    assert ask(whole, " 12 ", r"\d+").outcome is RIGHT and ask(whole, "12 cm", r"\d+").outcome is WRONG
    group = named({"kind": "regex", "pattern": "#### (-?[0-9]+)"})
    assert ask(group, "#### 1\n#### 12", 12).outcome is RIGHT and ask(group, "#### 1\n#### 12", 1).outcome is WRONG
    assert ask(group, "twelve", 12).outcome is MALFORMED and ask(group, "#### 12", 12).answer == "12"


def test_a_slow_pattern_ends_at_its_cpu_limit(named):
    slow = named({"kind": "regex", "deadline": 0.2, "workers": 1})
    verdict = ask(slow, "a" * 60 + "!", "(a+)+$")
    assert verdict.outcome is WRONG
    assert verdict.feedback == "too slow to judge: no verdict within 0.2 s of CPU time"
    assert ask(slow, "aa", "a+").outcome is RIGHT


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@needs_jsonschema
def test_json_schema(named, tmp_path: Path):
    gold = named("json_schema")
    assert ask(gold, '{"x": 1}', SCHEMA).outcome is RIGHT
    assert ask(gold, 'first:\n```json\n1\n```\nso\n```json\n{"x": 1}\n```\n', SCHEMA).outcome is RIGHT
    wrong = ask(gold, '{"x": "1"}', SCHEMA)
    assert wrong.outcome is WRONG and wrong.feedback == "$.x: '1' is not of type 'integer'"
    for text in ("x", '{"x": NaN}', "[" * 100_000):
        assert ask(gold, text, SCHEMA).outcome is MALFORMED
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert ask(named({"kind": "json_schema", "schema": str(path)}), '{"x": 1}').outcome is RIGHT
    assert ask(named({"kind": "json_schema", "schema": json.dumps(SCHEMA)}), '{"x": 1}').outcome is RIGHT


ENDLESS = [
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": ["array", "object", "integer"], "anyOf": [{"allOf": [{"$ref": "#"}]}]},
    {"items": {"not": {"$ref": "#/items"}}},
]
TREE = {"properties": {"child": {"$ref": "#"}}, "items": {"$ref": "#"}, "additionalProperties": False}


@needs_jsonschema
def test_a_schema_without_end_is_at_fault_and_a_deep_answer_is_not(named):
    verifier, deep = named("json_schema"), "[" * 300 + "]" * 300
    for schema in ENDLESS:
        for answer in ("[1]", deep):
            verdict = ask(verifier, answer, schema)
            assert verdict.outcome is UNKNOWN and verdict.cause == "the schema refers to itself without end"
    assert ask(verifier, '{"child": {"child": [{}]}}', TREE).outcome is RIGHT
    assert ask(verifier, '{"child": {"children": {}}}', TREE).outcome is WRONG
    verdict = ask(verifier, deep, TREE)
    assert verdict.outcome is WRONG and verdict.feedback == "nested too deeply to check"


@needs_jsonschema
def test_no_schema_is_fetched(named):
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        away = ask(named("json_schema"), "1", {"$ref": f"http://127.0.0.1:{server.server_port}/schema.json"})
        server.shutdown()
    assert away.outcome is UNKNOWN and "Unresolvable" in away.cause and not paths


@needs_jsonschema
def test_a_schema_is_a_regular_file_within_a_bound(named, tmp_path: Path):
    """A recipe names it: a device filled the memory, and a pipe held `check` for ever."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "deep").write_text("[" * 100_000)
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path / "large", tmp_path / "deep", tmp_path, tmp_path / "none"):
        with pytest.raises(BadData, match="cannot be read"):
            named({"kind": "json_schema", "schema": str(path)})
    (tmp_path / "nested").write_text('{"not":' * 900 + "{}" + "}" * 900)
    with pytest.raises(Usage, match="is not a JSON schema") as caught:
        named({"kind": "json_schema", "schema": str(tmp_path / "nested")})
    assert "nested" in caught.value.evidence


def test_without_its_extra_the_fix_of_json_schema_installs_it(monkeypatch):
    monkeypatch.setattr("groupwise.verifiers.formats.find_spec", lambda name: None)
    with pytest.raises(MissingRequirement) as caught:
        built("json_schema", None)
    assert "pip install 'groupwise[json]'" in caught.value.fix


@pytest.mark.parametrize(
    "name,fix",
    [
        ({"kind": "text", "answer_location": "box"}, "is not one of whole, either, boxed, line, tag"),
        ({"kind": "option_choice", "option_letters": "A"}, "two letters or more"),
        ({"kind": "option_choice", "option_letters": "AA"}, "two letters or more"),
        ({"kind": "option_choice", "which_answer": "lst"}, "is not one of first, last, only"),
        ({"kind": "tag_format", "tags": "think"}, "expected a list"),
        ({"kind": "tag_format", "tags": []}, "write names"),
        ({"kind": "regex", "pattern": "("}, "correct the pattern"),
        ({"kind": "regex", "pattern": "(a)(b)"}, "write the others as (?:...)"),
        ({"kind": "regex", "deadline": 0}, "deadline above 0"),
        ("regx", "did you mean regex?"),
        ({"kind": "tag_format", "tag": ["a"]}, "did you mean tags?"),
        ("judge", "Judge needs url"),
    ],
)
def test_a_wrong_field_is_refused_with_the_right_ones(name: object, fix: str):
    with pytest.raises(Usage) as caught:
        built(name, None)
    assert fix in str(caught.value)


@needs_jsonschema
def test_a_wrong_schema_is_refused(tmp_path: Path):
    with pytest.raises(Usage):
        built({"kind": "json_schema", "schema": '{"type": "nothing"}'}, None)
    with pytest.raises(BadData):
        built({"kind": "json_schema", "schema": "absent.json"}, None)


@pytest.mark.parametrize(
    "name,gold",
    [("option_choice", "Z"), ("regex", "("), ("text", ["."]), pytest.param("json_schema", 1, marks=needs_jsonschema)],
)
def test_gold_answers_are_checked_before_the_run(tmp_path: Path, name: str, gold: Any):
    path = tmp_path / "a.jsonl"
    good = {"option_choice": "A", "regex": "a", "text": "a", "json_schema": {}}[name]
    rows = [{"prompt": "a", "answer": {"$id": "x"} if good == {} else good}, {"prompt": "b", "answer": gold}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadData) as caught:
        built(name, RowsTask.read(path, lambda text: tuple(map(ord, text))))
    assert "a/2" in caught.value.evidence
