"""`groupwise doctor`: its checks, its advice, and that it always exits with 0."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from groupwise.__main__ import main
from groupwise.commands import doctor
from groupwise.core import WorkerLost
from tests.sandbox.boxes import needed


def findings(capsys, *words: str) -> dict:
    assert main(["doctor", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_all_findings_are_printed_and_the_exit_code_is_0(capsys):
    found = findings(capsys)
    assert {"python", "groupwise", "threads", "memory", "disk", "gpu", "sandbox", "extra dev"} <= found.keys()
    assert all(isinstance(f["seen"], str) and f["seen"] and f["ok"] is not ("fix" in f) for f in found.values())
    assert f"pytest {pytest.__version__}" in found["extra dev"]["seen"]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    required = [f for f in found.values() if not f["optional"]]
    assert all(name in text for name in found) and text.count("ok  ") == sum(f["ok"] for f in required)
    assert text.count("\nno  ") == sum(not f["ok"] for f in found.values() if f["optional"])


def test_a_missing_extra_is_no_failure():
    found = [
        doctor.MachineCheck("disk", True, "free"),
        doctor.MachineCheck("extra x", False, "y missing", "get y", optional=True),
    ]
    text = doctor.as_text(found)
    assert "all 1 checks passed" in text and "1 of 1 are not installed" in text and "do: get y" in text
    assert "FAILED" not in text and "FAILED" in doctor.as_text([doctor.MachineCheck("disk", False, "full"), *found])


def test_the_sandbox_is_started_where_bubblewrap_is_installed(capsys):
    needed()
    finding = findings(capsys)["sandbox"]
    assert finding["ok"] and "system-call filter" in finding["seen"]


def test_without_bubblewrap_the_fix_installs_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = findings(capsys)["sandbox"]
    assert (
        not finding["ok"] and "no bwrap on PATH" in finding["seen"] and "apt-get install bubblewrap" in finding["fix"]
    )
    assert main(["doctor"]) == 0
    assert "do: apt-get install bubblewrap" in capsys.readouterr().out


def test_an_error_of_the_sandbox_becomes_a_finding(monkeypatch):
    def failing() -> dict:
        raise WorkerLost("the sandbox ended", evidence="exit 1", fix="try again")

    monkeypatch.setattr(doctor, "sandbox_trial", failing)
    assert doctor.sandbox() == doctor.MachineCheck("sandbox", False, "the sandbox ended: exit 1", "try again")


def test_little_free_space_is_not_ok(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda where: SimpleNamespace(free=1 << 30))
    finding = doctor.disk(tmp_path)
    assert not finding.ok and finding.observation.startswith("1.0 GiB free in ") and "--out" in finding.fix


@pytest.mark.parametrize(
    ("text", "ok", "seen"),
    [
        ("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB", True, "4.0 of 8.0 GiB free"),
        ("MemTotal: 8388608 kB\nMemAvailable: 1048576 kB", False, "1.0 of 8.0 GiB free"),
        ("MemTotal: 8388608 kB", True, "unknown on this system"), ("", True, "unknown on this system"),
        (None, True, "unknown on this system"),
    ],
)  # fmt: skip
def test_memory(tmp_path: Path, text, ok, seen):
    path = tmp_path / "meminfo"
    if text is not None:
        path.write_text(text)
    finding = doctor.memory(path)
    assert (finding.ok, finding.observation) == (ok, seen)


@pytest.mark.parametrize(
    ("cuda", "smi", "built", "ok", "seen"),
    [
        (True, True, "12.8", True, "Card (80 GiB)"), (False, False, None, True, "none"),
        (False, True, None, False, "built for the CPU"), (False, True, "12.8", False, "cannot use it"),
    ],
)  # fmt: skip
def test_gpu(monkeypatch, cuda, smi, built, ok, seen):
    card = SimpleNamespace(name="Card", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: card)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi" if smi else None)
    finding = doctor.gpu()
    assert finding.ok is ok and seen in finding.observation


def test_extras():
    names = {f.name.removeprefix("extra ") for f in doctor.extras(doctor.requires("groupwise") or [])}
    assert {"dev", "wandb"} <= names
    (finding,) = doctor.extras(["pytest; extra == 'x'", 'no-such-thing; extra == "x"'])
    assert not finding.ok and finding.observation == f"pytest {pytest.__version__}, no-such-thing missing"
    assert doctor.threads().observation.startswith(f"{len(os.sched_getaffinity(0))} of ")
