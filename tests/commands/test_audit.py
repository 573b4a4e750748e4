"""`groupwise audit` from the command line."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from groupwise.__main__ import main

GRADE = """
def grade(prompt, answer, gold):
    return str(gold) in answer
"""
CASES = [
    {"answer": "it is 4", "gold": "4", "right": True},
    {"answer": "4 or 5", "gold": "4", "right": False},
    {"answer": "four", "gold": "4", "right": True},
    {"answer": "5", "gold": "4", "right": False},
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_file.py").write_text(GRADE)
    Path("cases.jsonl").write_text("".join(json.dumps(c) + "\n" for c in CASES))


def audit_output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["audit", *words]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_a_user_function_and_a_packaged_verifier_on_user_cases(capsys) -> None:
    out = audit_output(capsys, "my_file:grade", "last_number", "--use", "my_file.py", "--cases", "cases.jsonl")
    assert "4 answers, 2 of them right and 2 wrong: cases.jsonl" in out
    user, last = (re.sub(" +", " ", line) for line in out.splitlines() if re.match(r"(my_file|last_)\S*  ", line))
    assert user.startswith("my_file:grade 1 50.0 % (9.5 .. 90.5) 1 50.0 % (9.5 .. 90.5) 0 ")
    assert last.startswith("last_number 0 0.0 % (0.0 .. 65.8) 1 50.0 % (9.5 .. 90.5) 0 ")
    assert "accepted, but wrong\n  '4 or 5'  gold '4'  correct" in out
    assert "rejected, but right\n  'four'  gold '4'  wrong" in out


@pytest.mark.t(39)
def test_exact_rules_accept_no_wrong_answer(capsys) -> None:
    rows = (files("groupwise.verifiers") / "cases/math.jsonl").read_text("utf-8").splitlines()[::20]
    Path("cases.jsonl").write_text("\n".join(rows))
    out = audit_output(capsys, '{kind = "math", use_algebra = false}', "--list", "1", "--cases", "cases.jsonl")
    row = next(line for line in out.splitlines() if line.startswith("{kind"))
    assert re.match(r"\{kind = \"math\", use_algebra = false\} +0   0\.0 % \(0\.0 \.\. ", row)
    assert "accepted, but wrong" not in out and "more: --list" in out


def test_control_characters_in_answers_are_escaped(capsys) -> None:
    row = {"answer": "4 \x1b[2J", "gold": "4", "right": False}
    Path("cases.jsonl").write_text(json.dumps(row))
    assert "\x1b" not in audit_output(capsys, "last_number", "--cases", "cases.jsonl")


@pytest.mark.parametrize(
    "words,code,what",
    [
        (["calculator_answer"], 2, "use your own: --cases FILE.jsonl"),
        (["lst_number"], 2, "did you mean last_number?"),
        (["my_file:grade"], 2, "--use my_file.py"),
        (["last_number", "--cases", "absent.jsonl"], 3, "absent.jsonl cannot be read"),
        (["last_number", "--cases", "my_file.py"], 3, "my_file.py: 2 rows are not valid cases"),
    ],
)
def test_bad_input(capsys, words: list[str], code: int, what: str) -> None:
    error = audit_output(capsys, *words, code=code)
    assert what in error and "  do:   " in error


def test_without_a_verifier_the_usage_is_printed(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["audit"])
    assert caught.value.code == 2 and "VERIFIER" in capsys.readouterr().err
