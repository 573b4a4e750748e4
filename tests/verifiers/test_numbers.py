"""Tables of answers, gold answers and their verdicts."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Outcome, Prompt, Sample, Verifier
from groupwise.tasks import calculator_answer
from groupwise.verifiers import Exact, LastNumber
from groupwise.verifiers.exact_and_last_number import as_number
from tests.verifiers.built import ask

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable


EXACT = [
    ("Paris", "Paris", RIGHT), ("  Paris\n", "Paris", RIGHT), ("New\n  York", "New York ", RIGHT),
    ("paris", "Paris", WRONG), ("Paris.", "Paris", WRONG), ("NewYork", "New York", WRONG), ("37", 37, RIGHT),
    ("037", 37, WRONG), ("3.5", 3.5, RIGHT), ("", "Paris", MALFORMED), (" \n\t", "Paris", MALFORMED),
    ("a", ["a"], UNKNOWN), ("True", True, UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize("text,gold,outcome", EXACT)
def test_exact(text: str, gold: object, outcome: Outcome):
    verdict = ask(Exact(), text, gold)
    assert verdict.outcome is outcome
    assert bool(verdict.cause) is (outcome is UNKNOWN)


NUMBERS = [
    ("34", 34, RIGHT),
    ("**Answer:** 34", 34, RIGHT),
    ("Answer: **34**", 34, RIGHT),
    ("Answer: 34.", 34, RIGHT),
    (r"Answer: \(34\)", 34, RIGHT),
    (r"\boxed{34.0}", 34, RIGHT),
    ("Answer: 034", 34, RIGHT),
    ("#### 18.", "18", RIGHT),
    ("#### $18", "18", RIGHT),
    ("####18", "18", RIGHT),
    ("#### 18.0", "18", RIGHT),
    ("first 7, then 34", 34, RIGHT),
    ("34, not 35", 34, WRONG),
    ("34 35", 34, WRONG),
    ("340", 34, WRONG),
    ("3 4", 34, WRONG),
    ("1,234", 1234, RIGHT),
    ("1,234,567.50 dollars", 1234567.5, RIGHT),
    ("1,2345", 2345, RIGHT),
    ("3,4", 4, RIGHT),
    ("12,34", 1234, WRONG),
    ("-3", -3, RIGHT),
    ("x=-3", -3, RIGHT),
    ("x = - 3", -3, WRONG),
    ("−3", -3, RIGHT),
    ("+3", 3, RIGHT),
    ("-$5", -5, RIGHT),
    ("$-5", -5, RIGHT),
    ("10-3", 3, RIGHT),
    ("10-3", -3, WRONG),
    ("(2)-3", 3, RIGHT),
    ("2^-3", -3, RIGHT),
    ("3", -3, WRONG),
    ("-3", 3, WRONG),
    ("0.5", 0.5, RIGHT),
    (".5", 0.5, RIGHT),
    ("-.5", "-0.5", RIGHT),
    ("1/2", 0.5, RIGHT),
    ("1/2", 2, WRONG),
    ("0.50", "1/2", RIGHT),
    ("-1/4", "-.25", RIGHT),
    ("1/0", 0, WRONG),
    ("0.33", "1/3", WRONG),
    ("0.1", 0.1, RIGHT),
    ("0.30000000000000004", 0.3, WRONG),
    ("6e3", 6000, RIGHT),
    ("6.0E-2", 0.06, RIGHT),
    ("6e3x", 3, RIGHT),
    ("1e999999999", 1, WRONG),
    ("1e400", "1e400", RIGHT),
    ("1e401", "9", WRONG),
    ("1e-999999999", 0, WRONG),
    ("34%", 34, RIGHT),
    ("34 m", 34, RIGHT),
    ("-0", 0, RIGHT),
    ("version 1.2.3", 3, RIGHT),
    ("the wrong value 12 = 34", 34, RIGHT),
    ("x=3 or x=-3", -3, RIGHT),
    ("9" * 1000, 9, WRONG),
    ("9" * 400, "9" * 400, RIGHT),
    ("", 34, MALFORMED),
    ("no number", 34, MALFORMED),
    ("thirty-four", 34, MALFORMED),
    ("٣٤", 34, MALFORMED),
    ("-", 0, MALFORMED),
    ("34", "1,234", WRONG),
    ("1234", "$1,234.00", RIGHT),
    ("34", "34.", RIGHT),
    ("34", " 34 ", RIGHT),
    ("34", "about 34", UNKNOWN),
    ("34", "34 or 35", UNKNOWN),
    ("34", True, UNKNOWN),
    ("34", [34], UNKNOWN),
    ("34", None, UNKNOWN),
    ("34", float("inf"), UNKNOWN),
]


@pytest.mark.parametrize("text,gold,outcome", NUMBERS, ids=[f"{t[:30]!r}~{str(g)[:20]!r}" for t, g, _ in NUMBERS])
def test_last_number(text: str, gold: object, outcome: Outcome):
    verdict = ask(LastNumber(), text, gold)
    assert verdict.outcome is outcome
    assert bool(verdict.cause) is (outcome is UNKNOWN)


@given(st.decimals(-(10**9), 10**9, allow_nan=False, places=3))
def test_common_spellings_of_a_number(number):
    for written in (f"{number}", f"{number:,}", f"**{number}**", f"$ {number}.", f"so {number} km", f"={number}\n"):
        assert ask(LastNumber(), written, str(number)).outcome is RIGHT
    assert ask(LastNumber(), f"{number + 1}", str(number)).outcome is WRONG


@given(st.fractions())
def test_fractions_are_exact(number: Fraction):
    assert as_number(f"{number.numerator}/{number.denominator}") == number


@pytest.mark.parametrize("verifier", [Exact(), LastNumber()])
@pytest.mark.parametrize(
    "bomb", ["9^9^9^9", "{" * 1_000_000, "1," * 500_000, "1e" * 500_000, "1/" * 500_000, "1e" + "9" * 1_000_000 + "x"]
)
def test_bombs_are_read_as_text(verifier: Verifier, bomb: str):
    assert ask(verifier, bomb, 37).outcome in (WRONG, MALFORMED)


@given(st.text())
def test_no_text_raises(text: str):
    assert ask(LastNumber(), text, 7).outcome in (RIGHT, WRONG, MALFORMED)
    assert ask(Exact(), text, 7).outcome in (RIGHT, WRONG, MALFORMED)


@pytest.mark.parametrize(
    "verifier,text,value_read",
    [
        (Exact(), " New\n York ", "New York"),
        (Exact(), "", None),
        (LastNumber(), "first 7, then 1,000.50.", "2001/2"),
        (LastNumber(), r"\boxed{2/4} or **0.5**", "1/2"),
        (LastNumber(), "1/0", "1/0"),
        (LastNumber(), "9" * 401, "9" * 401),
        (LastNumber(), "no number", None),
        (calculator_answer, "7*5=35;#035", "35"),
        (calculator_answer, "#-0", "0"),
        (calculator_answer, "35", None),
    ],
)
def test_the_verdict_has_the_answer_that_was_read(verifier: Verifier, text: str, value_read: str | None):
    """Equal answers in any spelling are equal votes; an answer without a number has no vote."""
    sample = Sample(context=(), stream=(0,), text=text)
    assert asyncio.run(verifier(Prompt("p", (), "7*5=", {"answer": 35}), sample)).answer == value_read
