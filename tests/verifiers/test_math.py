"""The verifier `math`: the table of cases, bombs, threads and loops, order, and errors without its extra."""

import asyncio
import importlib.util
import json
import os
import random
import shutil
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.core import BadData, MissingRequirement, Usage
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.tasks import RowsTask
from groupwise.verifiers import Combined, CombinedMember, Exact, Math, MathDapo
from groupwise.verifiers.math.answer_equality import same
from groupwise.verifiers.math.extract_answer import extract_answer
from groupwise.verifiers.math.math_verifier import MathVerifier
from groupwise.verifiers.math.size_limits import too_much
from tests.verifiers.built import built

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable
CASES = [
    json.loads(line) for line in (files("groupwise.verifiers") / "cases/math.jsonl").read_text("utf-8").splitlines()
]
there = importlib.util.find_spec("math_verify") is not None and shutil.which("bwrap") is not None
needs_extra = pytest.mark.skipif(not there and "CI" not in os.environ, reason="needs mpmath and bubblewrap")


async def call(verifier: Verifier, text: str, gold: object, problem: str = "p") -> Verdict:
    return await verifier(Prompt("p", (), problem, {"answer": gold}), Sample(context=(), stream=(0,), text=text))


def ask(verifier: Verifier, text: str, gold: object) -> Verdict:
    return asyncio.run(call(verifier, text, gold))


def all_of(verifier: Verifier, calls: list[tuple[str, object]] | list[tuple[str, object, str]]) -> list[Verdict]:
    async def every() -> list[Verdict]:
        return list(await asyncio.gather(*(call(verifier, *one) for one in calls)))

    return asyncio.run(every())


@pytest.fixture
def exact():
    return built(Math(use_algebra=False))


@pytest.fixture(scope="module")
def full():
    verifier = built(Math())
    yield verifier
    verifier.close()


@pytest.mark.t(39)
def test_no_wrong_answer_of_the_table_is_accepted_by_exact_means(exact):
    cases = CASES[::3]
    verdicts = all_of(exact, [(c["answer"], c["gold"], c.get("prompt", "")) for c in cases])
    right = [v.outcome is RIGHT for v in verdicts]
    assert not [c for c, r in zip(cases, right) if r and not c["right"]]
    assert sum(c["right"] and not r for c, r in zip(cases, right)) < 80
    assert len(CASES) >= 400 and len({c["family"] for c in CASES}) >= 20


@pytest.fixture
def unboxed(full, monkeypatch):
    """The verifier with algebra, without the sandbox."""
    algebra = pytest.importorskip("groupwise.verifiers.math.numeric_equality")

    async def equal(pairs: list[tuple[str, str]]) -> list[bool]:
        return algebra.equal([list(pair) for pair in pairs])

    monkeypatch.setattr(full, "_equal", equal)
    return full


@needs_extra
@pytest.mark.t(39)
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_the_table(unboxed, every: int):
    cases = CASES[::every]
    verdicts = all_of(unboxed, [(c["answer"], c["gold"], c.get("prompt", "")) for c in cases])
    assert UNKNOWN not in {v.outcome for v in verdicts}
    assert not [(c["gold"], c["answer"]) for c, v in zip(cases, verdicts) if (v.outcome is RIGHT) != c["right"]]


UNREAD = [
    ("x+1", "[x]+1"), (r"\frac{y}{x}", r"\frac{dy}{dx}"), ("xt", "x(t)"), ("f(x)^{-1}", "f^{-1}(x)"),
    (r"\frac{1}{2x}", "1/2x"), (r"\frac{\sin x}{2}", r"\sin x/2"), ("x^3", "x3"), ("7s+e+v+e+n", "7s+e+v+e+n seven"),
]  # fmt: skip


@needs_extra
@pytest.mark.t(39)
def test_ambiguous_and_unreadable_answers_are_not_equal(unboxed):
    verdicts = all_of(unboxed, [(rf"\boxed{{{a}}}", g) for pair in UNREAD for g, a in (pair, pair[::-1])])
    assert {v.outcome for v in verdicts} == {WRONG}


def test_nouns_of_the_problem_are_units_and_words_that_change_a_number_never_are():
    problem = "Half of the goblins leave, twice squared. How many goblins stay?"
    assert same("8", "8 goblins", problem=problem) is True and same("8", "8 goblins") is not True
    for words in ("8 squared", "8 half goblins", "8 twice", "8 goblins squared"):
        assert same("8", words, lambda gold, answer: False, problem) is False


@pytest.mark.t(40)
@pytest.mark.parametrize("change", ["{}", "**{}**", "{}.", " {} ", r"\text{{{}}}", r"\left({}\right)", r"{{{}}}"])
@pytest.mark.parametrize("number", ["34", "-3", "1/2", r"\frac{1}{2}", "0.5", "1234"])
def test_another_notation_changes_no_verdict(exact, number: str, change: str):
    for gold, outcome in ((number, RIGHT), ("77", WRONG)):
        assert ask(exact, rf"So we get \boxed{{{change.format(number)}}}", gold).outcome is outcome


RULES = [
    (r"\boxed{3} and \boxed{4}", "last", "either", "4"),
    (r"\boxed{3} and \boxed{4}", "first", "either", "3"),
    (r"\boxed{3} and \boxed{4}", "only", "either", ""),
    (r"\boxed{3} and \boxed{ 3 }", "only", "either", "3"),
    (r"\boxed{3} and \boxed{4", "last", "either", ""),
    (r"\boxed{3} and \boxed{4", "first", "either", "3"),
    (r"\boxed{3}. Answer: 5", "last", "either", "3"),
    (r"\boxed{3}. Answer: 5", "last", "line", "5"),
    ("Answer: 5", "last", "boxed", ""),
    ("Answer: 5\nAnswer: 6", "first", "either", "5"),
    ("Answer: 5\nAnswer: 6", "last", "either", "6"),
    (r"<think>\boxed{3}</think>", "last", "either", ""),
    ("<think>a</think> <answer>5</answer>", "last", "tag", "5"),
    (r"a</think> <answer>so \boxed{5}</answer>", "last", "tag", "5"),
    ("a</think><answer>5</answer>", "last", "tag", ""),
    ("a</think> <answer>5", "last", "tag", ""),
    (r"\boxed 17", "last", "either", "17"),
    ("Answer： 17", "last", "either", "17"),
    ("Answer: 17. " + "And so on. " * 200, "last", "either", "17"),
    (r"\boxed{\boxed{3}}", "last", "either", r"\boxed{3}"),
    (r"\boxed{3} and \boxed{\boxed{4}+1}", "first", "either", "3"),
    ("\\boxed{3\n\nSo \\boxed{4}", "last", "either", "4"),
    ("Answer: 3\nI doubt that the answer is 4", "last", "either", "3"),
]
NO_ANSWERS = [
    r"\boxed{17" + " " * 1000 + "or 18}", r"\boxed{17" + r"\," * 500 + "or 18}", r"\boxed{17" + " " * 1200,
    "Answer: 17" + " " * 1000 + "or 18", "<think>a</think> <answer>17" + " " * 1000 + "or 18</answer>",
    "The answer is 17? No. It is 18.", "The answer is 17. No, wait: it is 18.", r"So $\boxed{17}$? No, it is 18.",
    "The answer cannot be: 17", "A wrong answer is 17.", r"\boxed{\boxed{17}+1}", r"\boxed{18, not \boxed{17}}",
    r"so $-\boxed{17}$", r"so $\boxed{17}^2$", r"It is not \boxed{17}.", r"\boxed{17} is wrong.",
    "I doubt that the answer is 17.", "If x=2, the answer is 17.",
]  # fmt: skip


@pytest.mark.parametrize("text,which,place,answer", RULES)
def test_which_of_several_answers_counts_is_a_rule(text, which, place, answer):
    assert extract_answer(text, which, place).text == answer


@pytest.mark.parametrize("text", NO_ANSWERS, ids=lambda text: text[:30])
def test_a_cut_questioned_retracted_or_denied_answer_is_none(text: str):
    for which in ("first", "last", "only"):
        assert extract_answer(text, which, "tag" if "<answer>" in text else "either").text == ""


def test_a_run_of_blanks_is_read_once():
    """Three overlapping runs took cubic time: a thousand blanks, minutes."""
    for blank in (" ", "\t"):
        assert extract_answer("answer" + blank * 50_000 + "x").extraction_rule == "no box, no answer line"
        assert extract_answer("The answer" + blank * 50_000 + "is 5").text == "5"


@given(st.integers(0, 99), st.lists(st.integers(100, 999), min_size=1, max_size=300))
@settings(max_examples=15)
def test_appended_guesses_never_score(gold, guesses):
    text = rf"\boxed{{{gold}}} " + " ".join(rf"\boxed{{{g}}}" for g in guesses)
    assert ask(built(Math(use_algebra=False)), text, gold).outcome is WRONG
    assert ask(built(Math(use_algebra=False, which_answer="only")), text, gold).outcome is MALFORMED
    assert same(str(gold), ", ".join(map(str, [gold, *guesses]))) is False


BOMBS = [
    "{" * 1_000_000, "9" * 10_000_000, "9^{9^{9^9}}", "9**9**9**9", "9^9^9^9", "((((9^9)^9)^9)^9)^9",
    "2^{2^{2^{2^{2^{2}}}}}", "10^{100000000}", "(10^7)!", "99999999!", "3!!!!!!!!!!", r"\binom{10000000}{5000000}",
    r"\Gamma(10^7)", r"\sum_{k=1}^{10^9} k^k", r"\prod_{k=1}^{100000} k", r"\int_0^1 x^{x^{x^x}} dx",
    "(" * 2000 + "1" + ")" * 2000, r"\frac{1}" * 150, r"\sqrt{" * 100 + "2" + "}" * 100, "1+" * 480 + "1", "x" * 900,
    "1," * 480, r"\text{" * 140 + "}" * 140, "-" * 900 + "1", "e^{e^{e^{79}}}",
]  # fmt: skip


@pytest.mark.t(41)
@pytest.mark.parametrize("bomb", BOMBS, ids=[b[:20] for b in BOMBS])
def test_bombs_are_wrong_before_anything_is_computed(exact, bomb: str):
    for text in (rf"\boxed{{{bomb}}}", f"Answer: {bomb}", bomb):
        assert ask(exact, text, 34).outcome in (WRONG, MALFORMED)


HEAVY = [rf"\ln(|y|+2^{{{n}}})+\ln(|y|+2^{{{n + 1}}})" for n in (300, 302, 304)]
"""Some seconds each: a thousand digits at each of seventy points."""


@needs_extra
@pytest.mark.t(41)
def test_an_answer_that_takes_too_long_is_wrong_and_a_gold_answer_that_does_is_unverifiable():
    """The next answer is judged as usual."""
    verifier: Any = built(Math(deadline=0.5, workers=1))
    try:
        for verdict in all_of(verifier, [(rf"\boxed{{x+{h}-({h})}}", "x") for h in HEAVY]):
            assert verdict.outcome is WRONG and verdict.feedback.endswith("too large to compare: too much CPU time")
        verdict = ask(verifier, r"\boxed{x+\ln(|y|+2^{300})}", r"\ln(2^{300}+|y|)+x")
        assert verdict.outcome is UNKNOWN and verdict.cause.startswith("the gold answer alone is too large to compare")
        assert ask(verifier, r"\boxed{2\sqrt{2}}", r"\sqrt{8}").outcome is RIGHT
    finally:
        verifier.close()


@needs_extra
def test_each_pair_of_a_long_list_has_time_and_the_first_that_takes_too_long_decides(full, monkeypatch):
    calls, submit = [], full._algebra._sandbox.submit
    monkeypatch.setattr(full._algebra._sandbox, "submit", lambda program: calls.append(program) or submit(program))
    golds = [rf"\sqrt{{{n}}}+x" for n in range(2, 7)]
    assert (
        ask(full, rf"\boxed{{{', '.join(f'x+{g[:-2]}' for g in reversed(golds))}}}", ", ".join(golds)).outcome is RIGHT
    )
    assert [len(program.function_args[0]) for program in calls] == [16, 9]


@needs_extra
@pytest.mark.t(41)
def test_any_thread_and_any_loop(full):
    outcomes: list[Outcome] = []
    threads = [
        Thread(target=lambda: outcomes.append(ask(full, r"\boxed{2\sqrt{2}}", r"\sqrt{8}").outcome)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [RIGHT] * 4


@needs_extra
@pytest.mark.t(42)
def test_verdicts_in_the_order_of_answers(full):
    cases = random.Random(0).sample(CASES, 40)
    alone = [ask(full, c["answer"], c["gold"]).outcome for c in cases]
    assert [v.outcome for v in all_of(full, [(c["answer"], c["gold"]) for c in cases])] == alone


@needs_extra
def test_math_verify_has_the_errors_that_the_page_lists():
    verifier = built("math_verify", None)
    try:
        for text, gold, outcome in (
            (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", RIGHT),
            (r"\boxed{35}", "34", WRONG),
            (r"\boxed{12 = 34}", "34", RIGHT),
            (r"\boxed{101_3}", "101_2", RIGHT),
        ):
            assert ask(verifier, text, gold).outcome is outcome
        assert ask(verifier, r"\boxed{1}", [1]).outcome is UNKNOWN
    finally:
        verifier.close()  # type: ignore[attr-defined]


DAPO = [
    ("Answer: 34", "34", RIGHT),
    ("Answer: 12\nAnswer: 34", "34", RIGHT),
    ("answer :  $34$", "34", RIGHT),
    ("Answer: x = 1,234", "1234", RIGHT),
    ("Answer: 12 km", "12", RIGHT),
    (r"Answer: \frac12", r"\frac{1}{2}", RIGHT),
    (r"Answer: \text{34}", "34", RIGHT),
    ("Answer: the wrong value 12 = 34", "34", RIGHT),
    ("Answer: x=3 or x=-3", "-3", RIGHT),
    ("**Answer:** 34", "34", WRONG),
    ("Answer: **34**", "34", WRONG),
    ("Answer: 34.", "34", WRONG),
    (r"Answer: \(34\)", "34", WRONG),
    ("Answer: 034", "34", WRONG),
    ("Answer: 1/2", "0.5", WRONG),
    ("Answer: 34" + " " * 300, "34", MALFORMED),
    (r"\boxed{34}", "34", MALFORMED),
]
DAPO_BOX = [
    (r"\boxed{34}", "34", RIGHT),
    (r"\boxed{3} \boxed{34}", "34", RIGHT),
    (r"\boxed{34.0}", "34", WRONG),
    (r"\boxed{34", "34", MALFORMED),
    (r"\boxed{34}" + " " * 95, "34", MALFORMED),
    (r"\boxed{a\}", "a\\", RIGHT),
]


@pytest.mark.parametrize("box,text,gold,outcome", [(b, *c) for b, cs in ((False, DAPO), (True, DAPO_BOX)) for c in cs])
def test_math_dapo_keeps_the_faults_of_the_published_grader(box: bool, text: str, gold: str, outcome: Outcome):
    assert ask(built(MathDapo(use_last_box=box)), text, gold).outcome is outcome


@needs_extra
def test_equal_comparisons_run_once(full, monkeypatch):
    calls, submit = [], full._algebra._sandbox.submit
    monkeypatch.setattr(full._algebra._sandbox, "submit", lambda program: calls.append(program) or submit(program))
    for _ in range(2):  # at once, and later
        verdicts = all_of(full, [(r"\boxed{\sqrt{50}}", r"5\sqrt{2}")] * 64)
        assert {v.outcome for v in verdicts} == {RIGHT} and len(calls) == 1


@needs_extra
def test_a_cancelled_caller_does_not_cancel_the_others():
    verifier = built(Math(workers=1))

    async def both() -> Verdict:
        busy = asyncio.ensure_future(call(verifier, r"\boxed{\sqrt{98}}", r"7\sqrt{2}"))
        await asyncio.sleep(0)
        first = asyncio.ensure_future(call(verifier, r"\boxed{\sqrt{72}}", r"6\sqrt{2}"))
        second = asyncio.ensure_future(call(verifier, r"\boxed{\sqrt{72}}", r"6\sqrt{2}"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await busy).outcome is RIGHT
        return await second

    try:
        assert asyncio.run(both()).outcome is RIGHT
    finally:
        verifier.close()


@given(st.text(alphabet=st.sampled_from(r"0123456789\{}()[],.^_+-*/=<>$% abcfracsqrtπ∞boxed" + "\n"), max_size=200))
@settings(max_examples=40)
def test_no_text_raises(text: str):
    verifier = built(Math(use_algebra=False))
    for answer in (text, rf"\boxed{{{text}}}", f"Answer: {text}"):
        assert ask(verifier, answer, r"\frac{7}{3}").outcome in (RIGHT, WRONG, MALFORMED)
    assert ask(verifier, r"\boxed{7}", text or "7").outcome in (RIGHT, WRONG, UNKNOWN)


@given(st.fractions(max_denominator=10**6))
@settings(max_examples=40)
def test_every_writing_of_a_fraction(fraction):
    gold = rf"\frac{{{fraction.numerator}}}{{{fraction.denominator}}}"
    for k in (1, 3):
        assert same(gold, f"{fraction.numerator * k}/{fraction.denominator * k}") is True
    assert same(gold, str(fraction + 1)) is False


def test_the_feedback_on_an_answer(exact):
    verdict = ask(exact, r"\boxed{0.50\text{ cm}}", r"\frac12")
    assert verdict.outcome is RIGHT and verdict.answer == "1/2"
    assert verdict.feedback == r"read '0.50\\text{ cm}' by the box; exact"
    assert ask(exact, r"\boxed{9^{9^9}}", 7).feedback.endswith("a tower of powers")
    assert ask(exact, "34", 34).feedback == "no answer: no box, no answer line"
    assert ask(exact, r"\boxed{1}", [1]).outcome is UNKNOWN


def test_whole_solutions_are_gold_answers_too(exact):
    assert ask(exact, "#### 18", "9+9=18\n#### 18").outcome is RIGHT
    assert ask(exact, r"\boxed{1/2}", r"Thus $\boxed{\frac12}$.").outcome is RIGHT


def test_without_its_extra_the_fix_installs_it(monkeypatch):
    monkeypatch.setattr("groupwise.verifiers.math.sandboxed_algebra.find_spec", lambda name: None)
    with pytest.raises(MissingRequirement) as caught:
        built("math", None)
    assert "pip install 'groupwise[math]'" in caught.value.fix and "--verifier.use_algebra false" in caught.value.fix
    assert isinstance(built(Math(use_algebra=False)), MathVerifier)


@needs_extra
@pytest.mark.parametrize(
    "name",
    ["math", "math_verify", "math_dr_grpo", Combined((CombinedMember("a", Math()), CombinedMember("b", Exact())))],
)
def test_without_bubblewrap_the_fix_installs_it(monkeypatch, name: object):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingRequirement) as caught:
        built(name, None)
    assert "apt-get install bubblewrap" in caught.value.fix and "--verifier.use_algebra false" in caught.value.fix
    assert isinstance(built(Math(use_algebra=False)), MathVerifier)


@needs_extra
def test_the_fix_for_a_sandbox_that_does_not_start_names_the_verifier_without_one(monkeypatch):
    monkeypatch.setattr("groupwise.sandbox.sandbox.sandbox_command", lambda *_: ["/bin/false"])
    verifier = built(Math(workers=1))
    with pytest.raises(MissingRequirement) as caught:
        ask(verifier, r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
    assert "none starts" in caught.value.what and "--verifier.use_algebra false" in caught.value.fix
    verifier.close()


@pytest.mark.parametrize(
    "name,message",
    [
        (
            {"kind": "math", "which_answer": "lst", "use_algebra": False},
            "answer: 'lst' is not one of first, last, only",
        ),
        (
            {"kind": "math", "answer_location": "box", "use_algebra": False},
            "'box' is not one of either, boxed, line, tag",
        ),
        ({"kind": "math", "which_anser": "last"}, "did you mean which_answer?"),
        ({"kind": "math", "deadline": 0, "use_algebra": False}, "deadline above 0"),
        ({"kind": "math", "deadline": "x", "use_algebra": False}, "deadline: 'x' is a string; expected a number"),
        ({"kind": "math", "workers": 1.5}, "expected a whole number"),
        ({"kind": "math", "use_algebra": 1}, "expected true or false"),
        ({"kind": "math", "workers": True}, "expected a whole number"),
        ({"kind": "math", "which_answer": 1}, "1 is not one of first, last, only"),
        ("math(answer=last)", 'verifier = { kind = "math", answer = "last" }'),
        (
            "math(answer='first', symbolic=False, deadline=2.5)",
            'verifier = { kind = "math", answer = "first", symbolic = false, deadline = 2.5 }',
        ),
        ("math('last')", 'verifier = { kind = "math" }'),
        ("mth", "did you mean math?"),
        ({"kind": "exact", "answer": "last"}, "Exact has no field 'answer'"),
    ],
)
def test_a_wrong_field_is_refused_with_the_right_ones(name: object, message: str):
    with pytest.raises(Usage) as caught:
        built(name)
    assert message in str(caught.value)


def test_gold_answers_are_checked_before_the_run(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "answer": "$ $"}\n{"prompt": "b", "answer": 1}\n')
    with pytest.raises(BadData) as caught:
        built({"kind": "math", "use_algebra": False}, RowsTask.read(path, lambda text: tuple(map(ord, text))))
    assert "a/1" in caught.value.evidence


def test_limits_let_ordinary_answers_through():
    for answer in ("2^{10}", "3^{999}", r"e^{-x^{2}}", "10!", r"\binom{10}{3}", "x^2+y^2+z^2+w^2"):
        assert too_much(answer) == ""
