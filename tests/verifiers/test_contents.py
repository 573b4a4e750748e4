"""Verifiers declare what their verdicts contain: the names of the parts, and whether wrong answers get feedback."""

import asyncio
from typing import Any

import pytest

from groupwise.config.registry import fitting_names
from groupwise.core import part_named
from groupwise.data import Prompt, Sample, Verdict, VerifierSettings, contents_of
from groupwise.data.verdict_contents import VerdictContents, joined_contents
from groupwise.tasks import MixtureVerifier, named_task
from groupwise.verifiers import (
    Combined,
    CombinedMember,
    Exact,
    HackableScore,
    LastNumber,
    NoisyVerdicts,
    Regex,
    grade_function,
)
from tests.verifiers.built import built

ANSWERS = ("", "12", "#12", "5+2=7;#7", "AB", "A-B", "ab;cd", "{", "nonsense #", "<think>x</think><answer>3</answer>")
TASKS = {
    "calculator_answer": "calculator", "sum_steps": "hinted_sums", "sum_with_proposal": "proposed_sums",
    "spanning_graph": "edges", "proof_steps": "deduction", "bead_string": "beads",
}  # fmt: skip


async def graded(verifier: Any, prompt: Prompt) -> list[Verdict]:
    return [await verifier(prompt, Sample(context=(1,), stream=(0,), text=text)) for text in ANSWERS]


def test_every_packaged_verifier_declares_its_verdicts() -> None:
    contents = {name: contents_of(part_named(name)) for name in fitting_names(VerifierSettings)}
    unknown = {name for name, declared in contents.items() if declared is None}
    assert unknown == {"EnvironmentVerdictVerifier", "Combined", "Function", "HackableScore", "NoisyVerdicts"}, (
        "those of others, or the user's"
    )
    assert {name for name, declared in contents.items() if declared and declared.has_feedback} == {
        "Code", "TagFormat", "JsonSchema", "Math", "ProofSteps", "Regex", "SumWithProposal", "SumSteps",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "task"), TASKS.items())
def test_verdicts_have_exactly_the_declared_parts(name: str, task: str) -> None:
    problems = named_task(task).build(lambda text: (1,))
    verifier = built(name, problems)
    verdicts = asyncio.run(graded(verifier, problems[0]))
    contents = contents_of(verifier)
    assert contents is not None
    assert {part for verdict in verdicts for part in verdict.subscores} == set(contents.subscore_names)
    assert any(verdict.feedback for verdict in verdicts) == contents.has_feedback


@pytest.mark.parametrize("name", ["exact", "last_number", "countdown"])
def test_verdicts_without_declared_contents_have_none(name: str) -> None:
    gold: Any = {"numbers": [3, 4], "target": 7} if name == "countdown" else 7
    verdicts = asyncio.run(graded(built(name, None), Prompt("p", (1,), "3+4=", {"answer": gold})))
    assert not any(verdict.subscores or verdict.feedback for verdict in verdicts)


def test_combinations_declare_what_their_members_do() -> None:
    several = built(
        Combined((CombinedMember("right", LastNumber()), CombinedMember("shape", Regex(pattern="a+"), 0.5)))
    )
    assert contents_of(several) == VerdictContents(("right", "shape"), has_feedback=True)
    flipped = built(NoisyVerdicts(HackableScore(Exact()), false_reject_rate=0.1))
    contents = contents_of(flipped)
    assert contents is not None and set(contents.subscore_names) == {"quality", "truth", "appealed", "overturned"}
    assert not contents.has_feedback
    verdict = asyncio.run(
        flipped(Prompt("p", (1,), "1=", {"answer": "1"}), Sample(context=(1,), stream=(0,), text="1"))
    )
    assert set(verdict.subscores) == set(contents.subscore_names)


def test_a_user_s_function_declares_nothing_and_a_mixture_with_it_is_unknown() -> None:
    own = grade_function(lambda answer: 1.0, in_process=True)
    known = built("sum_steps", None)
    assert contents_of(own) is None and contents_of(MixtureVerifier((known, own))) is None
    assert contents_of(MixtureVerifier((known, known))) == contents_of(known)
    assert joined_contents([]) == VerdictContents()
