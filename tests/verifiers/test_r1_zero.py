r"""Dr. GRPO's grader: each rule and each fault, on answers whose verdicts follow from the rule."""

import importlib.util
import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.core import MissingRequirement, Usage
from groupwise.data import Outcome, Verifier
from groupwise.verifiers import MathDrGrpo
from groupwise.verifiers.math.dr_grpo_grader import is_plain, math_form, prm_form, repeats
from groupwise.verifiers.math.published_graders import answer_of
from tests.verifiers.built import ask, built

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable
needs_extra = pytest.mark.skipif(
    not (all(map(importlib.util.find_spec, ("math_verify", "pylatexenc"))) and shutil.which("bwrap"))
    and "CI" not in os.environ,
    reason="needs math-verify, pylatexenc and bubblewrap",
)


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[str, Verifier]]:
    verifiers = {fields: built(MathDrGrpo(workers=1, skip_math_verify=fields != "")) for fields in ("", "fast=True")}
    yield verifiers
    for verifier in verifiers.values():
        verifier.close()  # type: ignore[attr-defined]


FAST = [
    (r"\boxed{x+a}", "x+c", RIGHT),  # a and c are units
    (r"\boxed{5\text{ km}}", r"5\text{ m}", RIGHT),
    (r"\boxed{50\%}", "50", RIGHT),
    (r"\boxed{50\%}", "0.5", WRONG),
    (r"\boxed{0.5}", r"\frac12", RIGHT),
    (r"\boxed{0.25}", r"\frac14", RIGHT),
    (r"\boxed{2/4}", "1/2", WRONG),
    (r"\boxed{1/2}", r"\frac{1}{2}", RIGHT),
    (r"\boxed{1,234}", "1234", RIGHT),
    (r"\boxed{034}", "34", RIGHT),
    (r"\boxed{34.0}", "34", RIGHT),
    (r"\boxed{34.00000001}", "34", RIGHT),
    (r"\boxed{34.001}", "34", WRONG),
    (r"\boxed{7 3/4}", "31/4", RIGHT),
    (r"\boxed{-5 3/4}", "-23/4", WRONG),  # -5+3/4
    (r"\boxed{(1,2)}", "(1, 2)", RIGHT),
    (r"\boxed{(1,0.50)}", r"(1,1/2)", RIGHT),
    (r"\boxed{[1,2]}", "(1,2)", WRONG),
    (r"\boxed{(2,1)}", "(1,2)", WRONG),
    (r"\boxed{(1,2,3)}", "(1,2)", WRONG),
    (r"\boxed{yes}", r"\text{Yes}", RIGHT),
    (r"\boxed{X}", "x", RIGHT),
    (r"\boxed{x=5}", "5", RIGHT),
    (r"\boxed{xyz=5}", "5", WRONG),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", RIGHT),
    (r"\boxed{(x-1)(x+1)}", "x^{2}-1", RIGHT),
    (r"\boxed{x+y+z}", "z+y+x", WRONG),  # three letters are not passed to sympy
    (r"\boxed{2+2}", "4", WRONG),  # a whole number is only ever itself
    (r"\boxed{2^{10}}", "1024", WRONG),
    (r"\boxed{3 million}", "3*10^6", RIGHT),
    (r"\boxed{3 million}", "3000000", WRONG),
    (r"\boxed{90^\circ}", "90", RIGHT),
    (r"\boxed{xy}", "yx", RIGHT),
    (r"\boxed{xy}", "xy^2", WRONG),
    (r"\boxed{}", "4", WRONG),
    (r"\boxed{x^{12}+1}", "1+x^{12}", WRONG),  # an exponent of two digits is not passed to sympy
    (r"\boxed{3} or \boxed{34}", "34", RIGHT),
    (r"\boxed{34} and \boxed 5", "34", MALFORMED),
    (r"\boxed{34", "34", MALFORMED),
    (r"\fbox{34}", "34", MALFORMED),
    ("34", "34", MALFORMED),
    (r"\boxed{34}", r"so \boxed{34}", RIGHT),
    (r"\boxed{34}", r"so \boxed 34", WRONG),
    (r"\boxed{34}", ["3", "34"], RIGHT),
    (r"\boxed{4}", ["3", "34"], WRONG),
    (r"\boxed{34}", 34, RIGHT),
]
SLOW = [
    (r"\boxed{2/4}", "1/2", RIGHT),
    (r"\boxed{2+2}", "4", RIGHT),
    (r"\boxed{x+y+z}", "z+y+x", RIGHT),
    (r"\boxed{5 or more}", "5", RIGHT),
    (r"\boxed{5}", "6", WRONG),
    (r"\boxed{" + "1+" * 100 + "1}", "101", WRONG),  # repetitive text is not passed to math-verify
    (r"\boxed{" + "1+" * 20 + "1}", "21", RIGHT),
]


@needs_extra
@pytest.mark.parametrize("fields,text,gold,outcome", [*(("fast=True", *c) for c in FAST), *(("", *c) for c in SLOW)])
def test_it_keeps_the_rules_and_faults_of_the_published_grader(graders, fields, text, gold, outcome):
    assert ask(graders[fields], text, gold).outcome is outcome


TAGS = [
    ("hm</think> <answer>34</answer>", "34"),
    ("hm</think> <answer> 34 </answer> done", " 34  done"),
    (r"hm</think> <answer>it is \boxed{34}</answer>", "34"),
    (r"hm</think> <answer>it is \boxed 34</answer>", None),
    ("hm</think> <answer>3</answer> <answer>34</answer>", "34"),
    ("hm</think><answer>34</answer>", None),
    ("hm</think> <answer>34", None),
    (r"\boxed{34}", None),
]


@pytest.mark.parametrize("text,answer", TAGS)
def test_with_tags_the_answer_follows_the_last_tag(text: str, answer: str | None):
    assert answer_of(text, tag=True) == answer


@pytest.mark.parametrize(
    "answer,form",
    [
        (r"\text{ 12 }", "12"),
        (r"\tfrac{1}2", r"\frac{1}2"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"\frac123", r"\frac{1}{2}3"),
        (r"\frac1", r"\frac1"),
        (r"3\frac", r"3\frac"),
        (r"\sqrt3x", r"\sqrt{3}x"),
        (r"\left( .5, \right)", "(0.5,)"),
        (r"12\text{ cm and }3\text{ cm}x", r"12\text{ cm and }3\text{ cm}x"),  # two units: it stands as it is
        ("0.5", r"\frac{1}{2}"),
        ("-3/6", r"\frac{-3}{6}"),
        ("3/06", "3/06"),
        ("k=x=5", "k=x=5"),
        ("a", "a"),  # an answer never vanishes whole
        (r"\begin{bmatrix}1\\2\end{bmatrix}", r"\begin{pmatrix}1\2\end{pmatrix}"),
        ("12 square meters", "12"),
        ("$18$", "$18$"),
    ],
)
def test_the_normal_form_of_math(answer: str, form: str):
    assert math_form(answer) == form


@pytest.mark.parametrize(
    "answer,form",
    [("$1,234,567$", "1234567"), ("1,2", "1,2"), ("2 and 3", "2,3"), ("- 5", "-5"), ("{x}", "x"), ("5 inches^2", "5"),
     ("1e3", "1000"), ("nan", "nan"), ("inf", "inf"), ("-2.99999999", "-3"), ("2,999.99999999", "2999"), ("", "")],
)  # fmt: skip
def test_the_normal_form_of_prm800k(answer: str, form: str):
    assert prm_form(answer) == form


@given(st.text(alphabet="ab", max_size=24))
@settings(max_examples=60)
def test_repeats_is_the_share_of_repeated_substrings(text: str):
    every = [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)]
    assert repeats(text) == pytest.approx(1 - len(set(every)) / len(every) if every else 0.0)


@given(st.text(alphabet=st.sampled_from(r"0123456789\{}()[],.^_+-*/=<>$% abcfracsqrtπboxedt" + "\n"), max_size=60))
@settings(max_examples=60)
def test_no_text_raises(text: str):
    assert isinstance(math_form(text), str)
    assert isinstance(prm_form(text.replace("\\", "")), str)
    assert answer_of(rf"\boxed{{{text}}}", tag=False) is not None or "}" in text or "{" in text or "\\boxed" in text


@needs_extra
def test_an_endless_comparison_is_wrong_and_the_next_answer_is_judged():
    verifier = built({"kind": "math_dr_grpo", "deadline": 0.5, "workers": 1}, None)
    try:
        assert ask(verifier, r"\boxed{9**9**9**9}", "1/3").outcome is WRONG
        bomb = ask(verifier, r"\boxed{(a+b+c+d+e)^{99}}", "(a+1)/3")
        assert bomb.outcome is WRONG and bomb.feedback == "too large to compare: too much CPU time"
        assert ask(verifier, r"\boxed{1/3}", "1/3").outcome is RIGHT
        assert ask(verifier, r"\boxed{__import__('os').system('true')}", "1/3").outcome is WRONG
    finally:
        verifier.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        r"(1/2)-(ln('\157\160'))",
        'ln("2")',
        "x.re",
        "x .re",
        "(1)._",
        "x_.re",
        "__x",
        "_x",
        "x[1]",
        "{x}",
        "x;y",
        "x=1",
        "x:1",
        "eⅹeⅽ(1)",
        "ｅ+1",
        "x²",
        "ſ(1)",
        "x`y",
        "x@y",
        "x\\y",
        "x#y",
        "9^9^9",
        "x^(9)",
        "x^99",
        "9999!",
        "(9!)!!",
        "9" * 401,
        "(" * 33 + "1" + ")" * 33,
        "1+" * 501,
    ],
)
def test_text_that_is_not_plain_arithmetic_is_never_parsed(text: str):
    assert not is_plain(text)


@pytest.mark.parametrize(
    "text", ["(sqrt(8))-(2*sqrt(2))", "x_1+2.5*y", "(2π)-(π*2)", "(ϕ^2)-(1)", "5!-(.5)", "f(x, 2)"]
)
def test_plain_arithmetic_is_parsed(text: str):
    assert is_plain(text)


@needs_extra
def test_gold_answers_that_cannot_be_compared(graders):
    for gold in (None, True, [], ["3", None], {"x": 1}):
        assert ask(graders["fast=True"], r"\boxed{3}", gold).outcome is UNKNOWN
    with pytest.raises(Usage, match="deadline is 0 and workers is 2"):
        built({"kind": "math_dr_grpo", "deadline": 0}, None)


def test_a_package_that_is_missing_is_named(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "groupwise.verifiers.math.sandboxed_algebra.find_spec",
        lambda name: None if name == "pylatexenc" else there("json"),
    )
    with pytest.raises(MissingRequirement, match="MathDrGrpo needs the package pylatexenc") as caught:
        built("math_dr_grpo", None)
    assert caught.value.fix.startswith("pip install 'groupwise[math]'")
