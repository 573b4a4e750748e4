"""Hostile answers through every verifier: none runs, leaks, raises, is right, or stops the run."""

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from groupwise.data import Outcome, Prompt, Sample, Verdict, Verifier
from groupwise.environments.tools import Hermes, MalformedCall, PythonBlock, calculate
from groupwise.sandbox import Sandbox
from groupwise.verifiers import find_verifier, verifier_names
from groupwise.verifiers.formats import Regex
from groupwise.verifiers.math import MathDrGrpo
from tests.tasks.hostile import BOMBS, SECRET, attacks, texts

RIGHT, WRONG, MALFORMED, UNKNOWN = Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.unverifiable
MODULES = ("math_verify", "pylatexenc", "jsonschema")
there = all(map(importlib.util.find_spec, MODULES)) and shutil.which("bwrap") is not None
needs_sandbox = pytest.mark.skipif(not there and "CI" not in os.environ, reason="needs the extras and bubblewrap")

SUM = "7+2+4+2="
TESTS = {"function": "f", "cases": [{"args": [3], "expected": 4711}]}
VERIFIERS: dict[str, object] = {
    "bead_string": ["mirror", "red", "blue"],
    "calculator_answer": 4711,
    "choice(options='JKWQ')": "W",
    "code": TESTS,
    "countdown": {"numbers": [3, 7, 2], "target": 4711},
    "exact": "4711",
    "flipping(verifier=exact, rejects=0.5)": "4711",
    "format": None,
    "glyphs": "red left blue",
    "figures": "2 red square",
    "hackable(verifier=exact)": "4711",
    "json_schema": {"const": 4711},
    "judge(url='http://127.0.0.1:9', model='{prompt}', deadline=0.01)": "4711",
    "last_number": 4711,
    "math(deadline=1.0, workers=1)": r"\frac{n}{2}",
    "math(symbolic=False, answer='only')": "4711",
    "math_dapo": "4711",
    "math_dapo(box=True)": "4711",
    "math_dr_grpo(deadline=1.0, workers=1, fast=True)": "1/2",
    "math_verify(deadline=1.0, workers=1)": r"\frac{n}{2}",
    "proof_steps": "e",
    "quilt_patches": ["red", "red", "blue", "dark"],
    "regex(deadline=1.0, workers=1)": r"^4711( a+)+$",
    "ring_direction": "north",
    "several(a='math(symbolic=False)', b=0.1 * text)": "4711",
    "spanning_graph": ["03"],
    "sum_proposal": 4711,
    "sum_steps": 4711,
    "text": "4711",
}
"""Each with a gold answer that no hostile answer gives."""
SLOW = {name for name in VERIFIERS if name.startswith(("math(deadline", "math_verify", "math_dr_grpo"))}
"""In the sandbox, where each answer is an execution: they get a third of the attacks."""
NOT_HERE = {"reasoning_gym"}
"""Judges the problems of its task only: tested with them."""


def verdicts_on(verifier: Verifier, gold: object, texts: Sequence[str]) -> list[Verdict]:
    """The verdict on each text; all calls run concurrently."""

    async def every() -> list[Verdict]:
        prompt = Prompt("p", (), SUM, {"answer": gold, "facts": "abc", "rules": ["ab>d", "cd>e"]})
        calls = (verifier(prompt, Sample(context=(), stream=(0,), text=text)) for text in texts)
        return await asyncio.gather(*calls)

    return asyncio.run(every())


def test_every_verifier_is_attacked():
    assert {name.partition("(")[0] for name in VERIFIERS} | NOT_HERE == set(verifier_names())


@needs_sandbox
@pytest.mark.parametrize("name", VERIFIERS)
def test_no_hostile_answer_runs_leaks_raises_or_is_right(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(SECRET, "7f3a-secret-0b1c")
    canary = tmp_path / "canary"
    answers = [*attacks(str(canary))][:: 3 if name in SLOW else 1]
    answers += [] if name in SLOW else [*texts()]
    answers += [f"x</think> <answer>\nAnswer: {answer}\n\\boxed{{{answer}}}</answer>" for answer in answers]
    verifier = find_verifier(name, None)
    try:
        verdicts = verdicts_on(verifier, VERIFIERS[name], answers)
    finally:
        getattr(verifier, "close", lambda: None)()
    assert not canary.exists()
    for answer, verdict in zip(answers, verdicts, strict=True):
        assert verdict.outcome is not RIGHT and verdict.value < 1, answer
        assert "7f3a-secret" not in repr(verdict), answer
        assert verdict.outcome is not UNKNOWN or name.startswith("judge"), (answer, verdict.cause)


@needs_sandbox
def test_no_attack_passes_the_allow_list_of_math_dr_grpo_also_without_a_sandbox(tmp_path: Path):
    canary = tmp_path / "canary"
    answers = [rf"\boxed{{{attack}}}" for attack in attacks(str(canary))]
    unsafe = partial(Sandbox, unsafe=True)
    verifier = MathDrGrpo(fast=True, deadline=1.0, workers=1, sandbox=unsafe)
    try:
        verdicts = verdicts_on(verifier, "1/2", answers)
    finally:
        verifier.close()
    assert not canary.exists()
    assert {v.outcome for v in verdicts} <= {WRONG, MALFORMED}


@needs_sandbox
def test_a_bomb_is_wrong_in_every_verifier_with_its_cause():
    """The gold answer is quick to compare with, so the time that a call uses up is the answer's."""
    for name, bombs in (("math", BOMBS[:4]), ("math_verify", BOMBS[:1]), ("math_dr_grpo", BOMBS[:1])):
        verifier = find_verifier(f"{name}(deadline=0.8, workers=1)", None)
        try:
            verdicts = verdicts_on(verifier, "x+1", [rf"\boxed{{{bomb}}}" for bomb in bombs])
        finally:
            verifier.close()  # type: ignore[attr-defined]
        assert {v.outcome for v in verdicts} == {WRONG}, [v for v in verdicts if v.outcome is not WRONG]
        assert name == "math" or all("too large to compare" in v.feedback for v in verdicts)


def test_a_slow_answer_is_wrong_and_a_slow_pattern_unverifiable():
    for gold, text, outcome in (("(a+)+$", "a" * 60 + "!", WRONG), ("(?:|){60}(?!)", "a", UNKNOWN)):
        verifier = Regex(deadline=0.2, workers=1)
        verdict = verdicts_on(verifier, gold, [text])[0]
        verifier.close()
        assert verdict.outcome is outcome and "0.2 s of CPU time" in verdict.feedback + verdict.cause


@pytest.mark.filterwarnings("error")
def test_the_calculator_accepts_arithmetic_only(tmp_path: Path):
    """Whatever the text, a value or a ValueError; Python's parser sees no name, quote or attribute."""
    answers = [
        *attacks(str(tmp_path / "canary")),
        *texts(),
        *BOMBS,
        "9e99*" * 39 + "9",
        "1e308*" * 30 + "1",
        "1/7e308" * 20,
    ]
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
            for format in (Hermes(), PythonBlock()):
                try:
                    assert isinstance(format.calls(text), list)
                except MalformedCall as error:
                    assert len(str(error)) < 200
    assert not (tmp_path / "canary").exists()
