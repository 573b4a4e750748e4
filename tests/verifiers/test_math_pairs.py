"""Pairs of answers and gold answers by family: no wrong one is accepted; and the rules behind them, as laws."""

import asyncio
import importlib.util
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from groupwise.data import Outcome
from groupwise.verifiers import Math
from groupwise.verifiers.math.answer_equality import same
from groupwise.verifiers.math.box_denials import is_hypothetical
from groupwise.verifiers.math.extract_answer import extract_answer
from groupwise.verifiers.verifier_audit import AuditResult, LabelledCase, audit_cases, read_cases
from tests.verifiers.built import built

PAIRS = read_cases(Path(__file__).with_name("math_pairs.jsonl"))
FAMILIES = tuple(dict.fromkeys(case.family for case in PAIRS))
PAGE = Path(__file__).parents[2] / "docs" / "verifiers.md"
there = importlib.util.find_spec("math_verify") is not None and shutil.which("bwrap") is not None
needs_extra = pytest.mark.skipif(not there and "CI" not in os.environ, reason="needs mpmath and bubblewrap")


def judge(cases: Sequence[LabelledCase]) -> AuditResult:
    """The verdict on each pair, with algebra in this process."""
    algebra = pytest.importorskip("groupwise.verifiers.math.numeric_equality")
    verifier: Any = built(Math())

    async def equal(pairs: list[tuple[str, str]]) -> list[bool]:
        return algebra.equal([list(pair) for pair in pairs])

    verifier._equal = equal  # type: ignore[method-assign]
    result = asyncio.run(audit_cases(verifier, cases))
    verifier.close()
    assert Outcome.unverifiable not in {verdict.outcome for verdict in result.verdicts}
    return result


def test_each_family_has_twenty_pairs_of_both_kinds_each_once():
    counts = Counter((case.family, case.right) for case in PAIRS)
    assert all(counts[family, right] >= 20 for family in FAMILIES for right in (True, False))
    assert max(Counter((case.answer, case.gold) for case in PAIRS).values()) == 1


@needs_extra
def test_no_wrong_answer_of_every_third_pair_is_accepted():
    judged = judge(PAIRS[::3])
    assert [(case.family, case.gold, case.answer) for case, _ in judged.false_accepts] == []
    assert 9 * len(judged.false_rejects) <= sum(on_page(family)[5] for family in FAMILIES)


@needs_extra
@pytest.mark.slow
def test_the_page_has_the_errors_in_each_family_none_accepted_and_a_third_of_math_verifys_rejected():
    from groupwise.verifiers.math.math_verify import accepted

    judged = judge(PAIRS)
    verdicts = [(case, accepted(case.answer, str(case.gold))) for case in PAIRS]
    assert 3 * len(judged.false_rejects) <= sum(case.right and not right for case, right in verdicts)
    for family in FAMILIES:
        of = Counter(case.right for case in PAIRS if case.family == family)
        accepts, rejects = (
            sum(case.family == family for case, _ in errors) for errors in (judged.false_accepts, judged.false_rejects)
        )
        peer = Counter(case.right for case, right in verdicts if case.family == family and right is not case.right)
        assert on_page(family) == [of[False], of[True], accepts, rejects, peer[False], peer[True]], family
        assert accepts == 0, family


def on_page(family: str) -> list[int]:
    """The row of a family: wrong and right answers, and the false accepts and rejects of `math` and of math-verify."""
    row = re.search(rf"^\| {family} \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert row is not None, f"docs/verifiers.md has no row for {family!r}"
    return [int(cell) for cell in row[1].split("|")]


NUMBERS = st.integers(2, 999)


@given(NUMBERS, NUMBERS, st.sampled_from([r"\%", r"^\circ", "%", r"^{\circ}"]))
@settings(max_examples=40)
def test_a_sign_is_the_unit_of_a_sum_only_if_each_term_has_it(a: int, b: int, sign: str):
    for gold, one, other in ((a + b, "+", ""), (a - b, "-", ""), (a + b, " + ", " ")):
        for text in (f"{a}{one}{b}{other}{sign}", f"{a}{other}{sign}{one}{b}"):
            assert same(str(gold), text) is not True and same(f"{gold}{sign}", text) is not True, text
    assert same(f"{a + b}{sign}", f"{a}{sign}+{b}{sign}") is True
    if "%" in sign:
        assert same(str(a * b), rf"{a}\cdot {b}{sign}") is False
        assert same(f"{a * b}{sign}", rf"{a}\cdot {b}{sign}") is True


LETTERS = st.lists(st.sampled_from("ABCDE"), min_size=2, max_size=4)


@given(LETTERS, st.randoms())
@settings(max_examples=40)
def test_letters_that_may_be_matrices_keep_their_order(letters: list[str], random):
    algebra = pytest.importorskip("groupwise.verifiers.math.numeric_equality")
    other = letters.copy()
    random.shuffle(other)
    for form in ("2{}", r"\frac{{{}}}{{3}}", "{}+x"):
        gold, answer = (form.format("".join(text)) for text in (letters, other))
        assert letters == other or not algebra.same(gold, answer)
        assert algebra.same(gold, gold) or len(set(letters)) < len(letters)


@given(st.sampled_from(["vec", "hat"]), st.sampled_from("abuv"), st.sampled_from("xyzw"))
def test_products_of_vectors_are_equal_only_as_text(accent: str, first: str, second: str):
    algebra = pytest.importorskip("groupwise.verifiers.math.numeric_equality")
    a, b = (rf"\{accent}{{{name}}}" for name in (first, second))
    for one in (rf"{a}\times {b}", rf"{b}\times {a}", rf"{a}\cdot {b}"):
        for other in (rf"{a}\times {b}", rf"{b}\times {a}", rf"2{a}\times {b}"):
            assert algebra.same(one, other) is False
    assert algebra.same(rf"2{a}+3{b}", rf"3{b}+2{a}") is True


@given(st.text(alphabet=st.sampled_from("56+-=., abx"), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60)
def test_a_box_in_a_box_counts_only_alone(beside: str, front: bool):
    assume(beside.strip(" .,:;"))
    inside = rf"{beside}\boxed{{5}}" if front else rf"\boxed{{5}}{beside}"
    assert extract_answer(rf"so \boxed{{{inside}}}").text == ""
    assert extract_answer(rf"so \boxed{{{inside}}} and \boxed{{\boxed{{5}}}}").text == r"\boxed{5}"


DENYING = [
    "Everything but {}.", "Any value but {} works.", "It is far from {}.", "It is hardly {}.", "By no means {}.",
    "Neither {} nor 8 works.", "We rule out {}.", "{} fails.", "{} is invalid.", "{} (wrong)", "{} - no, that fails.",
    "A common mistake is {}.", "Many would write {}.", "{} would do, but it is not an integer.", "Half of {}",
    "Twice {}", "The square root of ${}$", "Add 1 to {}", "less than {}", "{} squared",
    "I hardly believe that it is {}.", "There is no reason to think it is {}.", "It does not follow that it is {}.",
    "If x were 3, it would be {}.", "It would be {} if x were 3.", "Had x been 3, we would get {}.",
    "{} would have been right.", "The answer is at least {}.", "It is either {} or 8.", "{} or maybe 8",
    "{} times 3", "{} times $x$", "{} more than five", "The sum of {} and 1", "20 divided by {}",
]  # fmt: skip
AFFIRMING = [
    "Nothing but {}.", "None other than {}.", "All but one fail, which leaves {}.", "Neither 8 nor 7 works, hence {}.",
    "We rule out 8, so {}.", "Half of 18 is {}.", "(So the answer is {})", "Most of them fail. We get {}.",
    "{} (3 for each row)", "{} - no remainder is left.", "8 fails, but {} works.",
    "I have no doubt that it is {}.", "It cannot be anything but {}.", "No value except {} works.",
    "The number of students who don't is {}.", "The total would be {}.", "If it were 8, it would be even. So it is {}.",
    "Even if order mattered, it would be {}.", "If it were 8, it would fail; it is {}.", "In either case it is {}.",
    "We need no more than {} draws.",
    "It takes {} times as long.", "He ran {} times.", "She has {} more than Bob.", "12 is {} more than 3.",
]  # fmt: skip


@given(NUMBERS, st.sampled_from([r"\boxed{%d}", r"\fbox{%d}", r"**\boxed{%d}**"]))
@settings(max_examples=10)
def test_words_that_deny_or_calculate(number: int, box: str):
    for texts, expected in ((DENYING, ""), (AFFIRMING, str(number))):
        for text in texts:
            assert extract_answer(text.format(box % number)).text == expected, text


UNDECIDED = ["Perhaps it is {}.", "I guess it is {}.", "at least {}", "We need at least {} draws.", "{} or 10"]
"""Words that say of some answers that they are none. `docs/verifiers.md` gives the reason for each side."""
STRICT = ["He ran more than {} miles.", "There are {} more than 3 of them.", "20 divided by {} is 4."]


def test_undecided_words_err_on_the_side_that_the_page_names():
    for texts, expected in ((UNDECIDED, "9"), (STRICT, "")):
        for text in texts:
            assert extract_answer(text.format(r"\boxed{9}")).text == expected, text


@pytest.mark.parametrize("text", [r"If it were 3, it would be \boxed{9}.", r"Without it, he would have \boxed{9}."])
def test_an_unreal_condition_states_the_answer_of_a_problem_that_has_one(text: str):
    for problem, expected in (("How much is it?", ""), ("If it were 3, how much would it be?", "9")):
        assert extract_answer(text, hypothetical=is_hypothetical(problem)).text == expected


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
@settings(max_examples=20)
def test_a_set_in_a_set_is_no_element(numbers: list[int]):
    first, *rest = map(str, numbers)
    plain, nested = (r"\{" + ",".join([x, *rest]) + r"\}" for x in (first, rf"\{{{first}\}}"))
    assert same(plain, nested) is False and same(nested, plain) is False
    assert same(nested, nested.replace(",", ", ")) is True
    assert len(rest) > 0 or (same(first, plain), same(first, nested)) == (True, False)


STATING = [
    "",
    "So ",
    "Thus, ",
    "2+3=5, hence ",
    "Since 5 is prime, ",
    "We add. ",
    "## ",
    "- ",
    "We see that ",
    "Therefore our ",
]
NOT_STATING = [
    "I doubt that ", "If x=2, ", "Suppose ", "Nobody says that ", "It is false that ", "Let us test whether ",
    "He said: ", "Do not write: ", "Is it so that ", "Half of ", "One may guess that ", "It is not the case that ",
    "Perhaps ",
]  # fmt: skip


@pytest.mark.parametrize("marker", ["the answer is 5.", "the final answer is: 5", "the answer: 5"])
def test_an_answer_line_states_its_answer(marker: str):
    for before in STATING:
        words = marker.replace("the ", "", 1) if before.endswith("our ") else marker
        assert extract_answer(before + words).text.rstrip(".") == "5", before
    for before in NOT_STATING:
        assert extract_answer(before + marker).extraction_rule == "no box, no answer line", before


@given(st.integers(1000, 10**12), st.sampled_from([" ", r"\,", "\u2009", "\u00a0", "\u202f", "'", "’", ",", "{,}"]))
@settings(max_examples=40)
def test_every_separator_of_thousands(number: int, separator: str):
    grouped = f"{number:,}".replace(",", separator)
    assert same(str(number), grouped) is True and same(str(number + 1), grouped) is False
    if number >= 10**6:
        assert same(str(number), f"{number:,}".replace(",", ".")) is True
    cut = grouped[:-1]
    assert same(str(number // 10), cut) is not True and same(str(number), cut) is not True


@given(st.integers(0, 10**6), st.sampled_from([0xFF10, 0x0660, 0x06F0, 0x0966, 0x0BE6, 0x1D7CE]))
@settings(max_examples=30)
def test_digits_of_every_script(number: int, zero: int):
    text = "".join(chr(zero + int(digit)) for digit in str(number))
    assert same(str(number), text) is True and same(str(number + 1), text) is False
