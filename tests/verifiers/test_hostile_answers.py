"""Hostile answers through every verifier: none runs, leaks, raises, is right, or stops the run."""

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from groupwise.config.registry import fitting_names
from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier, VerifierSettings
from groupwise.environments.tools import HermesFormat, MalformedCall, PythonBlockFormat, calculate
from groupwise.sandbox import Sandbox
from groupwise.verifiers import (
    BeadString,
    CalculatorAnswer,
    Code,
    Combined,
    CombinedMember,
    Countdown,
    Exact,
    Figures,
    GlyphPatches,
    HackableScore,
    JsonSchema,
    Judge,
    LastNumber,
    Math,
    MathDapo,
    MathDrGrpo,
    MathVerify,
    NoisyVerdicts,
    OptionChoice,
    ProofSteps,
    QuiltPatches,
    Regex,
    RingPointDirection,
    SpanningGraph,
    SumSteps,
    SumWithProposal,
    TagFormat,
    Text,
)  # fmt: skip
from tests.tasks.hostile import BOMBS, SECRET, attacks, texts
from tests.verifiers.built import built

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable
MODULES = ("math_verify", "pylatexenc", "jsonschema")
there = all(map(importlib.util.find_spec, MODULES)) and shutil.which("bwrap") is not None
needs_sandbox = pytest.mark.skipif(not there and "CI" not in os.environ, reason="needs the extras and bubblewrap")

SUM = "7+2+4+2="
TESTS = {"function": "f", "cases": [{"args": [3], "expected": 4711}]}
VERIFIERS: dict[VerifierSettings, object] = {
    BeadString(): ["mirror", "red", "blue"],
    CalculatorAnswer(): 4711,
    OptionChoice(option_letters="JKWQ"): "W",
    Code(): TESTS,
    Combined((CombinedMember("a", Math(use_algebra=False)), CombinedMember("b", Text(), 0.1))): "4711",
    Countdown(): {"numbers": [3, 7, 2], "target": 4711},
    Exact(): "4711",
    Figures(): "2 red square",
    TagFormat(): None,
    GlyphPatches(): "red left blue",
    HackableScore(Exact()): "4711",
    JsonSchema(): {"const": 4711},
    Judge(url="http://127.0.0.1:9", model="{prompt}", deadline=0.01): "4711",
    LastNumber(): 4711,
    Math(deadline=1.0, workers=1): r"\frac{n}{2}",
    Math(use_algebra=False, which_answer="only"): "4711",
    MathDapo(): "4711",
    MathDapo(use_last_box=True): "4711",
    MathDrGrpo(deadline=1.0, workers=1, skip_math_verify=True): "1/2",
    MathVerify(deadline=1.0, workers=1): r"\frac{n}{2}",
    NoisyVerdicts(Exact(), false_reject_rate=0.5): "4711",
    ProofSteps(): "e",
    QuiltPatches(): ["red", "red", "blue", "dark"],
    Regex(deadline=1.0, workers=1): r"^4711( a+)+$",
    RingPointDirection(): "north",
    SpanningGraph(): ["03"],
    SumWithProposal(): 4711,
    SumSteps(): 4711,
    Text(): "4711",
}
"""Each with a gold answer that no hostile answer gives."""
SLOW = {
    kind for kind in VERIFIERS if isinstance(kind, MathDrGrpo | MathVerify) or kind == Math(deadline=1.0, workers=1)
}
"""In the sandbox, where each answer is an execution: they get a third of the attacks."""
NOT_HERE = {"EnvironmentVerdictVerifier", "Function", "GymScore", "ProcessRewardModel", "RewardModel"}
"""They judge no answer, by a user's code or model, or the problems of one task only: tested with them."""


def verdicts_on(verifier: Verifier, gold: object, texts: Sequence[str]) -> list[Verdict]:
    """The verdict on each text; all calls run concurrently."""

    async def every() -> list[Verdict]:
        prompt = Prompt("p", (), SUM, {"answer": gold, "facts": "abc", "rules": ["ab>d", "cd>e"]})
        calls = (verifier(prompt, Sample(context=(), stream=(0,), text=text)) for text in texts)
        return await asyncio.gather(*calls)

    return asyncio.run(every())


def test_every_verifier_is_attacked():
    assert {type(kind).__name__ for kind in VERIFIERS} | NOT_HERE == set(fitting_names(VerifierSettings))


@needs_sandbox
@pytest.mark.parametrize("kind", VERIFIERS, ids=repr)
def test_no_hostile_answer_runs_leaks_raises_or_is_right(kind: VerifierSettings, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(SECRET, "7f3a-secret-0b1c")
    canary = tmp_path / "canary"
    answers = [*attacks(str(canary))][:: 3 if kind in SLOW else 1]
    answers += [] if kind in SLOW else [*texts()]
    answers += [f"x</think> <answer>\nAnswer: {answer}\n\\boxed{{{answer}}}</answer>" for answer in answers]
    verifier = built(kind)
    try:
        verdicts = verdicts_on(verifier, VERIFIERS[kind], answers)
    finally:
        getattr(verifier, "close", lambda: None)()
    assert not canary.exists()
    for answer, verdict in zip(answers, verdicts, strict=True):
        assert verdict.outcome is not RIGHT and verdict.value < 1, answer
        assert "7f3a-secret" not in repr(verdict), answer
        assert verdict.outcome is not UNKNOWN or isinstance(kind, Judge), (answer, verdict.cause)


@needs_sandbox
def test_no_attack_passes_the_allow_list_of_math_dr_grpo_also_without_a_sandbox(tmp_path: Path):
    canary = tmp_path / "canary"
    answers = [rf"\boxed{{{attack}}}" for attack in attacks(str(canary))]
    unsafe = partial(Sandbox, unsafe=True)
    verifier = built(MathDrGrpo(skip_math_verify=True, deadline=1.0, workers=1), None, unsafe)
    try:
        verdicts = verdicts_on(verifier, "1/2", answers)
    finally:
        verifier.close()
    assert not canary.exists()
    assert {v.outcome for v in verdicts} <= {WRONG, MALFORMED}


@needs_sandbox
def test_a_bomb_is_wrong_in_every_verifier_with_its_cause():
    """The gold answer is quick to compare with, so the time that a call uses up is the answer's."""
    for kind, bombs in ((Math, BOMBS[:4]), (MathVerify, BOMBS[:1]), (MathDrGrpo, BOMBS[:1])):
        verifier = built(kind(deadline=0.8, workers=1))
        try:
            verdicts = verdicts_on(verifier, "x+1", [rf"\boxed{{{bomb}}}" for bomb in bombs])
        finally:
            verifier.close()  # type: ignore[attr-defined]
        assert {v.outcome for v in verdicts} == {WRONG}, [v for v in verdicts if v.outcome is not WRONG]
        assert kind is Math or all("too large to compare" in v.feedback for v in verdicts)


def test_a_slow_answer_is_wrong_and_a_slow_pattern_unverifiable():
    for gold, text, outcome in (("(a+)+$", "a" * 60 + "!", WRONG), ("(?:|){60}(?!)", "a", UNKNOWN)):
        verifier = built(Regex(deadline=0.2, workers=1))
        verdict = verdicts_on(verifier, gold, [text])[0]
        verifier.close()
        assert verdict.outcome is outcome and "0.2 s of CPU time" in verdict.feedback + verdict.cause


@pytest.mark.filterwarnings("error")
def test_the_calculator_accepts_arithmetic_only(tmp_path: Path):
    """Whatever the text, a value or a ValueError; Python's parser sees no name, quote or attribute."""
    answers = [
        *attacks(str(tmp_path / "canary")), *texts(), *BOMBS, "9e99*" * 39 + "9", "1e308*" * 30 + "1", "1/7e308" * 20,
    ]  # fmt: skip
    answers += ["(" * 99 + "1" + ")" * 99, "-" * 199 + "1", "1" + "/9e300" * 30, "'\\d'", "1if 1else 2", "0x1for x"]
    for text in answers:
        try:
            assert len(calculate(text)) < 5000
        except ValueError as error:
            assert len(str(error)) < 200, text
    assert not (tmp_path / "canary").exists()


def test_tool_calls_are_parsed_or_malformed(tmp_path: Path):
    for attack in (*attacks(str(tmp_path / "canary")), *texts()):
        for text in (attack, f"<tool_call>{attack}</tool_call>", f"```python\n{attack}\n```", f"```python\n{attack}"):
            for format in (HermesFormat(), PythonBlockFormat()):
                try:
                    assert isinstance(format.calls(text), list)
                except MalformedCall as error:
                    assert len(str(error)) < 200
    assert not (tmp_path / "canary").exists()
