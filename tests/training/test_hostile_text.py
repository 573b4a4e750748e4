"""Tests that outside text in the output of a command contains no control characters and starts no line."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from groupwise.__main__ import bug, main
from groupwise.commands import doctor
from groupwise.commands.audit import errors
from groupwise.commands.check import errors_text
from groupwise.commands.sample_text import format_sample
from groupwise.core import BadData
from groupwise.data import ENVIRONMENT, Finish, Outcome, Sample, Verdict
from groupwise.evaluation.evaluation_files import evaluation_text, write
from groupwise.training.progress_output import ProgressPrinter, notify
from groupwise.verifiers.verifier_audit import AuditResult, LabelledCase
from tests.commands.test_compare import PROTOCOL, RIGHT, evaluation

NAME = "a\x1b[2J\x1b]0;x\x07\x9b31m\x7f\u202e\u200b\u2028\ud800z"
FORGED = "x\ndo: rm -rf ~"


def conversation(name: str) -> Sample:
    sample = (
        Sample(context=(9,), stream=(0,)).with_tokens((5,), (0,), (-1.0,)).with_tokens((6,), (ENVIRONMENT,), (-1.0,))
    )
    read = sample.with_text(name * 2, (len(name), 2 * len(name))).with_finish(Finish.stop).add_counts({name: 1.0})
    return read.with_verdict(Verdict(Outcome.wrong, cause=name))


def evaluated(name: str) -> dict[str, object]:
    protocol = deepcopy(PROTOCOL)
    protocol["model"]["name"] = protocol["task"]["name"] = name
    return evaluation(RIGHT, protocol)


def comparison(name: str) -> None:
    write(Path("a.json"), evaluated(name.replace("\ud800", "")))
    write(Path("b.json"), evaluated(name.replace("\ud800", "")))
    assert main(["compare", "a.json", "b.json"]) == 0


def refused_comparison(name: str) -> None:
    other = deepcopy(PROTOCOL)
    other["verifier"]["name"] = name.replace("\ud800", "")
    write(Path("a.json"), evaluation(RIGHT))
    write(Path("b.json"), evaluation(RIGHT, other))
    assert main(["compare", "a.json", "b.json"]) == 2


def recipe(name: str) -> str:
    text = json.dumps(name.replace("\ud800", ""), ensure_ascii=False).replace("\x7f", "\\u007f")
    Path("r.toml").write_text(f'task = "calculator"\nmethod = "grpo"\ntemplate = {text}\n')
    return "r.toml"


def doctor_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda **_: [doctor.MachineCheck("disk", False, name, "make room")])
    assert main(["doctor"]) == main(["doctor", "--json"]) == 0


def crash(name: str) -> None:
    try:
        raise RuntimeError(name)
    except RuntimeError:
        bug(["sample", name])


def audit(name: str) -> None:
    case, verdict = LabelledCase(name, name, True), Verdict(Outcome.wrong, cause=name)
    for line in errors("exact", AuditResult((case,), (verdict,), (0.0,)), 3):
        notify(line)


OUTPUTS: dict[str, Callable[[str, pytest.MonkeyPatch], object]] = {
    "error: a model": lambda n, _: main(["sample", n, "7*5="]),
    "error: a run": lambda n, _: main(["resume", n]),
    "error: a task": lambda n, _: main(["check", recipe("no"), "--task", n]),
    "error: code": lambda n, _: main(["train", "--use", n]),
    "error: a field": lambda n, _: main(["check", recipe("no"), f"--method.{n}", "1"]),
    "check": lambda n, _: print(errors_text(n, [BadData(n, fix="mend it")])),
    "a bug": lambda n, _: crash(n),
    "a warning": lambda n, _: notify(n),
    "progress": lambda n, _: ProgressPrinter(3).notify(n),
    "doctor": doctor_output,
    "show": lambda n, _: main(["show", recipe(n)]),
    "show: no such": lambda n, _: main(["show", n]),
    "diff": lambda n, _: main(["diff", recipe(n), "grpo"]),
    "sample": lambda n, _: print(format_sample(conversation(n))),
    "eval": lambda n, _: print(evaluation_text(evaluated(n))),
    "compare": lambda n, _: comparison(n),
    "compare: refused": lambda n, _: refused_comparison(n),
    "audit": lambda n, _: audit(n),
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", [NAME, FORGED], ids=["escapes", "line"])
def test_outside_text_cannot_control_the_terminal(
    output: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    OUTPUTS[output](name, monkeypatch)
    captured = capfd.readouterr()
    lines = (captured.out + captured.err).split("\n")
    assert any(lines) and all(line.isprintable() for line in lines), lines
    if output not in ("progress", "a bug"):  # a message and a traceback have several lines
        assert not any(line.startswith("do:") for line in lines), lines
