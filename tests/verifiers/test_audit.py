"""The audit counts errors correctly, and the packaged cases are valid."""

import asyncio
import importlib.util
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.commands.audit import by_family
from groupwise.config.recipe_toml import read_verifier
from groupwise.core import BadData
from groupwise.data import Outcome, Prompt, Sample, Verdict
from groupwise.verifiers.verifier_audit import (
    AROUND,
    CHANGES,
    OF_WHOLE_TEXTS,
    AuditResult,
    LabelledCase,
    audit_cases,
    count_flips,
    packaged_cases,
    read_cases,
)
from tests.verifiers.built import built

CASES = (
    LabelledCase("yes 1", "1", True),
    LabelledCase("no 1", "1", True),
    LabelledCase("none 1", "1", True),
    LabelledCase("yes 2", "1", False),
    LabelledCase("no 2", "1", False),
    LabelledCase("boom", "1", True),
    LabelledCase("None", "1", False),
)


async def word(prompt: Prompt, sample: Sample) -> Verdict:
    """What the first word says, whatever is right."""
    first = sample.text.split()[0]
    outcomes = {"yes": Outcome.correct, "no": Outcome.wrong, "none": Outcome.malformed}
    return None if first == "None" else Verdict(outcomes[first])  # type: ignore[return-value]


def test_every_error_is_counted_once():
    result = asyncio.run(audit_cases(word, CASES))
    assert [c.answer for c, _ in result.false_accepts] == ["yes 2"]
    assert [c.answer for c, _ in result.false_rejects] == ["no 1", "none 1", "boom"]
    assert result.verdicts[-2].cause == "KeyError: 'boom'" and "expected a Verdict" in result.verdicts[-1].cause
    assert len(result.seconds_per_call) == len(CASES) and result.latency(0.95) == max(result.seconds_per_call)


def test_errors_are_counted_in_each_family():
    cases = tuple(replace(case, family="odd" if i % 2 else "even") for i, case in enumerate(CASES))
    table = by_family({"word": asyncio.run(audit_cases(word, cases))})
    assert [line.split() for line in table[2:]] == [["even", "2", "2", "0", "1"], ["odd", "1", "2", "1", "2"]]


def test_only_changed_texts_are_verified_again_and_flips_are_counted():
    async def strict(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome(sample.text == r"\boxed{4}"))

    cases = (LabelledCase(r"\boxed{4}", "4", True), LabelledCase("nothing", "4", False))

    async def both() -> dict[str, tuple[int, int]]:
        return await count_flips(strict, await audit_cases(strict, cases))

    flip_counts = asyncio.run(both())
    assert flip_counts["blank lines around it"] == (2, 1) and flip_counts["blanks in the box"] == (1, 1)
    assert "Windows line ends" not in flip_counts and "fractions not reduced" not in flip_counts


@pytest.mark.parametrize(
    "name,text,other",
    [
        ("fractions not reduced", r"\boxed{\frac{1}{2}}", r"\boxed{\frac{2}{4}}"),
        ("blanks in the box", r"so \boxed{x^{2}}.", r"so \boxed{ x^{2} }."),
        (r"\text{} in the box", r"\boxed{34} \boxed{\pi}", r"\boxed{\text{34}} \boxed{\pi}"),
        ("the box in bold", r"\boxed{4}", r"**\boxed{4}**"),
        ("a full stop in the box", r"\boxed{4.}", r"\boxed{4.}"),
    ],
)
def test_each_change_gives_its_notation(name: str, text: str, other: str):
    assert CHANGES[name](text) == other


def test_the_packaged_table_has_more_than_400_cases_each_once_and_both_kinds():
    cases = packaged_cases("math") or ()
    assert len(cases) >= 400 and len({c.family for c in cases}) >= 20
    assert max(Counter((c.answer, str(c.gold)) for c in cases).values()) == 1
    assert 0.3 < sum(c.right for c in cases) / len(cases) < 0.7
    assert packaged_cases("nothing") is None


@pytest.mark.parametrize("name", ["text", "option_choice", "tag_format", "regex", "json_schema"])
def test_exact_verifiers_have_no_error_on_their_packaged_cases(name: str):
    """The label of each case follows from the documentation of the verifier alone."""
    if name == "json_schema" and importlib.util.find_spec("jsonschema") is None and "CI" not in os.environ:
        pytest.skip("jsonschema is not installed")
    cases = packaged_cases(name) or ()
    assert len(cases) >= 60 and len({c.family for c in cases}) >= 3 and len({c.right for c in cases}) == 2
    assert max(Counter((c.answer, repr(c.gold)) for c in cases).values()) == 1
    kind = read_verifier(name)
    verifier = built(kind)

    async def both() -> tuple[AuditResult, dict[str, tuple[int, int]]]:
        result = await audit_cases(verifier, cases)
        return result, await count_flips(verifier, result, OF_WHOLE_TEXTS.get(type(kind), AROUND))

    result, flips = asyncio.run(both())
    getattr(verifier, "close", lambda: None)()
    assert result.false_accepts == [] and result.false_rejects == []
    assert [flipped for _, flipped in flips.values()] == [0] * len(flips) and (flips or name == "regex")


@pytest.mark.parametrize(
    "row,why",
    [
        ("[1]", "not a JSON object"),
        ("{", "row 1: Expecting"),
        ({"answer": "4", "gold": "4"}, "no field 'right'"),
        ({"answer": "4", "gold": "4", "right": 1}, "right must be true or false"),
        ({"answer": 4, "gold": "4", "right": True}, "answer must be text"),
        ({"answer": "4", "gold": "4", "right": True, "verdict": 1}, "an unknown field 'verdict'"),
    ],
)
def test_an_invalid_row_is_named(tmp_path: Path, row, why: str):
    path = tmp_path / "cases.jsonl"
    path.write_text(row if isinstance(row, str) else json.dumps(row))
    with pytest.raises(BadData) as caught:
        read_cases(path)
    assert why in caught.value.evidence and '"right": true' in caught.value.fix


def test_a_file_without_cases_is_refused(tmp_path: Path):
    (tmp_path / "cases.jsonl").write_text("\n")
    with pytest.raises(BadData, match="has no cases"):
        read_cases(tmp_path / "cases.jsonl")
    with pytest.raises(BadData, match="cannot be read"):
        read_cases(tmp_path / "absent.jsonl")
