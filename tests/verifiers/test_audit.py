"""The audit counts what it is told, and its table of cases is sound."""

import asyncio
import importlib.util
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from groupwise.data import BadData, Outcome, Prompt, Sample, Verdict
from groupwise.verifiers import find_verifier
from groupwise.verifiers.audit import (
    AROUND,
    CHANGES,
    OF_WHOLE_TEXTS,
    AuditResult,
    Case,
    audit_cases,
    count_flips,
    packaged_cases,
    read_cases,
)

CASES = (
    Case("yes 1", "1", True),
    Case("no 1", "1", True),
    Case("none 1", "1", True),
    Case("yes 2", "1", False),
    Case("no 2", "1", False),
    Case("boom", "1", True),
    Case("None", "1", False),
)


async def word(prompt: Prompt, sample: Sample) -> Verdict:
    """What the first word says, whatever is right."""
    first = sample.text.split()[0]
    said = {"yes": Outcome.correct, "no": Outcome.wrong, "none": Outcome.malformed}
    return None if first == "None" else Verdict(said[first])  # type: ignore[return-value]


def test_every_error_is_counted_once():
    judged = asyncio.run(audit_cases(word, CASES))
    assert [c.answer for c, _ in judged.false_accepts] == ["yes 2"]
    assert [c.answer for c, _ in judged.false_rejects] == ["no 1", "none 1", "boom"]
    assert judged.verdicts[-2].cause == "KeyError: 'boom'" and "expected a Verdict" in judged.verdicts[-1].cause
    assert len(judged.seconds) == len(CASES) and judged.latency(0.95) == max(judged.seconds)


def test_changes_are_asked_only_where_they_change_the_text_and_flips_are_counted():
    async def strict(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome(sample.text == r"\boxed{4}"))

    cases = (Case(r"\boxed{4}", "4", True), Case("nothing", "4", False))

    async def both() -> dict[str, tuple[int, int]]:
        return await count_flips(strict, await audit_cases(strict, cases))

    found = asyncio.run(both())
    assert found["blank lines around it"] == (2, 1) and found["blanks in the box"] == (1, 1)
    assert "Windows line ends" not in found and "fractions not reduced" not in found


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
def test_what_the_changes_do(name: str, text: str, other: str):
    assert CHANGES[name](text) == other


def test_the_packaged_table_has_more_than_400_cases_each_once_and_both_kinds():
    cases = packaged_cases("math") or ()
    assert len(cases) >= 400 and len({c.family for c in cases}) >= 20
    assert max(Counter((c.answer, str(c.gold)) for c in cases).values()) == 1
    assert 0.3 < sum(c.right for c in cases) / len(cases) < 0.7
    assert packaged_cases("nothing") is None


@pytest.mark.parametrize("name", ["text", "choice", "format", "regex", "json_schema"])
def test_the_packaged_tables_of_what_is_exact_find_no_error(name: str):
    """Each verdict was decided by reading what the verifier promises, before it was asked."""
    if name == "json_schema" and importlib.util.find_spec("jsonschema") is None and "CI" not in os.environ:
        pytest.skip("jsonschema is not installed")
    cases = packaged_cases(name) or ()
    assert len(cases) >= 60 and len({c.family for c in cases}) >= 3 and len({c.right for c in cases}) == 2
    assert max(Counter((c.answer, repr(c.gold)) for c in cases).values()) == 1
    verifier = find_verifier(name, None)

    async def both() -> tuple[AuditResult, dict[str, tuple[int, int]]]:
        judged = await audit_cases(verifier, cases)
        return judged, await count_flips(verifier, judged, OF_WHOLE_TEXTS.get(name, AROUND))

    judged, flips = asyncio.run(both())
    getattr(verifier, "close", lambda: None)()
    assert judged.false_accepts == [] and judged.false_rejects == []
    assert [flipped for _, flipped in flips.values()] == [0] * len(flips) and (flips or name == "regex")


@pytest.mark.parametrize(
    "row,why",
    [
        ("[1]", "not an object"),
        ("{", "row 1: Expecting"),
        ({"answer": "4", "gold": "4"}, "no field 'right'"),
        ({"answer": "4", "gold": "4", "right": 1}, "right is true or false"),
        ({"answer": 4, "gold": "4", "right": True}, "answer is text"),
        ({"answer": "4", "gold": "4", "right": True, "verdict": 1}, "an unknown field 'verdict'"),
    ],
)
def test_a_row_that_is_no_case_is_named(tmp_path: Path, row, why: str):
    path = tmp_path / "cases.jsonl"
    path.write_text(row if isinstance(row, str) else json.dumps(row))
    with pytest.raises(BadData) as caught:
        read_cases(path)
    assert why in caught.value.evidence and '"right": true' in caught.value.fix


def test_no_cases_at_all(tmp_path: Path):
    (tmp_path / "cases.jsonl").write_text("\n")
    with pytest.raises(BadData):
        read_cases(tmp_path / "cases.jsonl")
    with pytest.raises(BadData, match="cannot be read"):
        read_cases(tmp_path / "absent.jsonl")
