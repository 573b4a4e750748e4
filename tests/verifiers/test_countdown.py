"""The verifier of `countdown`: exact values, each number once, and no text of an answer is executed."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Outcome, Prompt, Sample
from groupwise.verifiers import Countdown
from groupwise.verifiers.countdown import DEEPEST, LONGEST

GOLD = {"numbers": [3, 7, 2, 2], "target": 15}


def outcome_of(text: str, gold: object = GOLD, every: bool = True) -> str:
    sample = Sample(context=(1,), stream=(0,), text=text)
    return asyncio.run(Countdown(every)(Prompt("p", (1,), "", {"answer": gold}), sample)).outcome.name


ANSWERS = [
    ("<answer>7 * 2 + 3 - 2</answer>", "correct"),
    ("3 is first.</think> <answer>2 * (7 + 2) - 3</answer>", "correct"),
    ("<answer>7*2+3-2 = 15</answer>", "correct"),
    ("<answer>7*2+3-2 = 15.</answer>", "correct"),
    ("<answer>7*2+3-2 = 15.0 = +15</answer>", "correct"),
    ("<answer>7*2+3-2 = 14+3-2 = 15</answer>", "correct"),
    ("<answer>7*2+3-2 = 99</answer>", "wrong"),
    ("<answer>7*2+3-2 = 15 = 99</answer>", "wrong"),
    ("<answer>7*2+3-2 = 99 = 15</answer>", "wrong"),
    ("<answer>7*2+3-2 == 15</answer>", "wrong"),
    ("<answer>7*2+3-2 =</answer>", "wrong"),
    ("<answer>7*2+3-2 = 15 or 16</answer>", "wrong"),
    ("<answer>7*2+3-2 = 1" + "5" * 100_000 + "</answer>", "wrong"),
    ("I think:\n7 × 2 + 3 − 2\n\n", "correct"),
    ("<answer>1</answer> no <answer>7*2+3-2</answer>", "correct"),
    ("<answer>7*2+3-2", "correct"),
    ("<answer>-2 + 3 + 7 * 2</answer>", "correct"),
    ("<answer>7*2+3-2</answer> <answer>1</answer>", "wrong"),
    ("<answer>15</answer>", "wrong"),
    ("<answer>7 + 2 + 3 + 2</answer>", "wrong"),
    ("<answer>7 + 7 + 3 - 2</answer>", "wrong"),
    ("<answer>3 * (7 - 2)</answer>", "wrong"),
    ("<answer>7 * 2 + 3 - 2 + 2 - 2</answer>", "wrong"),
    ("<answer>2 * (7 + 2) - 2 - 1</answer>", "wrong"),
    ("<answer>(72 + 3) / 2 - 22</answer>", "wrong"),
    ("<answer>7 * 2 + 1</answer>", "wrong"),
    ("", "malformed"),
    ("no idea", "malformed"),
    ("<answer></answer>", "malformed"),
    ("<answer>15 = 7*2+3-2 + x</answer>", "wrong"),
    ("<answer>7 * 2 + 3 -</answer>", "malformed"),
    ("<answer>7 / (2 - 2) + 3</answer>", "malformed"),
    ("<answer>3 + 7 + 5.0</answer>", "malformed"),
    ("<answer>7 ** 2</answer>", "malformed"),
    ("<answer>7 // 2</answer>", "malformed"),
    ("<answer>9 ** 9 ** 9 ** 9</answer>", "malformed"),
    ("<answer>3 7 2 2</answer>", "malformed"),
    ("<answer>7(2) + 3 - 2</answer>", "malformed"),
    ("<answer>() + 7</answer>", "malformed"),
    ("<answer>07*2+3-2</answer>", "malformed"),
    ("<answer>1_5</answer>", "malformed"),
    ("<answer>0xF</answer>", "malformed"),
    ("<answer>__import__('os').system('true')</answer>", "malformed"),
    ("<answer>[x for x in (3,)]</answer>", "malformed"),
    ("<answer>٧*2+3-2</answer>", "malformed"),
    ("<answer>" + "(" * (DEEPEST + 1) + "7" + ")" * (DEEPEST + 1) + "</answer>", "malformed"),
    ("<answer>" + "1+" * LONGEST + "1</answer>", "malformed"),
    ("<answer>" + "-" * (LONGEST - 1) + "7</answer>", "wrong"),
    ("(" * 1_000_000, "malformed"),
]


@pytest.mark.parametrize("text,outcome", ANSWERS, ids=[text[:40] for text, _ in ANSWERS])
def test_answers(text: str, outcome: str) -> None:
    assert outcome_of(text) == outcome


def test_a_part_of_the_numbers_is_enough_without_every() -> None:
    gold = {"numbers": [3, 7, 2, 50], "target": 10}
    assert (outcome_of("<answer>3 + 7</answer>", gold), outcome_of("<answer>3 + 7</answer>", gold, False)) == (
        "wrong",
        "correct",
    )
    assert outcome_of("<answer>3 + 7 + 2 - 2</answer>", gold, False) == "wrong"


@given(st.text(alphabet="0123456789+-*/() =", max_size=60))
def test_any_text_has_a_verdict(text: str) -> None:
    assert outcome_of(text) in ("correct", "wrong", "malformed")


@given(st.lists(st.integers(1, 99), min_size=2, max_size=6), st.data())
def test_an_expression_of_the_numbers_is_right_for_its_value(numbers: list[int], data: st.DataObject) -> None:
    from fractions import Fraction

    terms = [(str(n), Fraction(n)) for n in numbers]
    while len(terms) > 1:
        (a, x), (b, y), *terms = data.draw(st.permutations(terms))
        sign = data.draw(st.sampled_from("+-*/" if y else "+-*"))
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else x}[sign]
        terms.append((f"({a} {sign} {b})", value))
    ((text, value),) = terms
    if value.denominator == 1:
        assert outcome_of(f"<answer>{text}</answer>", {"numbers": numbers, "target": int(value)}) == "correct"
        assert outcome_of(f"<answer>{text}</answer>", {"numbers": numbers, "target": int(value) + 1}) == "wrong"


@pytest.mark.parametrize(
    "gold", [15, "15", None, {"target": 15}, {"numbers": [3], "target": "15"}, {"numbers": 3, "target": 3}]
)
def test_an_invalid_gold_answer_is_unverifiable(gold: object) -> None:
    assert outcome_of("<answer>3</answer>", gold) == Outcome.unverifiable.name
