"""The commands in processes, with terminals and pipes.

Where a signal or the end of an interpreter is tested, the process is a new interpreter; else a fork of a warm one.
"""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.lifecycle.final_message import held_out_summary
from groupwise.runs.run_layout import RunLayout
from tests.docs.warm_shell import environment

GROUPWISE = [sys.executable, "-m", "groupwise"]
SMALL = ["--prompts", "4", "--method.group_size", "4", "--sampling.max_tokens", "12", "--evaluate.problems", "8"]
CANARY = "canary-4c1f0"


def run_piped(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The finished command, with its output in pipes."""
    env = environment() | {"WANDB_API_KEY": CANARY, "HF_TOKEN": CANARY, **variables}
    return subprocess.run(["groupwise", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def on_a_terminal(*words: str, cwd: Path, **variables: str) -> str:
    """The output on a terminal of 60 columns."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with subprocess.Popen(
        ["groupwise", *words], cwd=cwd, env=environment() | variables, stdout=writer, stderr=writer
    ) as process:
        os.close(writer)
        output = b""
        try:
            while part := os.read(reader, 4096):
                output += part
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(reader)
        assert process.wait(timeout=60) == 0, output.decode()
    return output.decode()


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A directory in which `groupwise train` ran once, and the finished process."""
    home = tmp_path_factory.mktemp("piped")
    return home, run_piped("train", *SMALL, "--iterations", "3", "--evaluate.every", "2", cwd=home)


@pytest.fixture(scope="module")
def run(piped: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    (directory,) = (piped[0] / "runs").iterdir()
    return directory


def test_a_piped_run_prints_plain_lines_and_the_accuracy(
    piped: tuple[Path, subprocess.CompletedProcess[str]], run: Path
) -> None:
    done = piped[1]
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"calculator-\d{8}-\d{6}", run.name)
    machine, plan, time, first, *others = done.stderr.splitlines()
    lines = [line for line in others if not line.startswith("warning: ")]
    assert machine == "machine: cpu, float32"
    assert plan.startswith("plan: ") and time.startswith("time: about ") and first == f"run: runs/{run.name}"
    assert [line.split("  ")[0] for line in lines] == ["0/3", "1/3", "2/3", "3/3"]
    assert all(word in lines[1] for word in ("reward ", "held-out ", "length ", "tok/s", " left"))
    assert "\r" not in done.stderr + done.stdout and "\x1b" not in done.stderr + done.stdout
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    before, after = metrics[0]["eval/accuracy_greedy"], metrics[-1]["eval/accuracy_greedy"]
    low, high = metrics[-1]["eval/low_greedy"], metrics[-1]["eval/high_greedy"]
    assert done.stdout.splitlines() == [
        "done: 3 iterations",
        f"  held-out greedy {before:.3f} -> {after:.3f}  (95 % interval {low:.3f} .. {high:.3f})",
        f"  report: runs/{run.name}/report.html",
        f"  model:  runs/{run.name}/model",
        f"  try:    groupwise eval runs/{run.name} --samples 8",
        f"          groupwise report runs/{run.name} ANOTHER_RUN",
    ]
    assert (run / "report.html").is_file() and (run / "model" / "model.safetensors").is_file()


def test_no_secret_environment_variable_is_written(run: Path) -> None:
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_eval_of_a_run_reproduces_its_last_evaluation(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert main(["eval", str(run), "--samples", "1"]) == 0
    head, greedy, *counts, written = capsys.readouterr().out.splitlines()
    assert head == "calculator, greedy"
    values = [last[f"eval/{name}_greedy"] for name in ("accuracy", "low", "high")]
    assert greedy == "avg@1      {:.3f}  ({:.3f} .. {:.3f}, 95 % over 8 problems)".format(*values)
    names = ["correct", "wrong", "malformed", "unverifiable", "truncated", "missing"]
    assert [line.split()[0] for line in counts[:6]] == names
    values = [last[f"eval/{name}"] for name in ("accuracy", "low", "high")]
    sampled = "avg@1      {:.3f}  ({:.3f} .. {:.3f}, 95 % over 8 problems)".format(*values)
    assert counts[6:9] == ["", "calculator, temperature 1", sampled]
    file = Path(written.removeprefix("written: "))
    assert file.parent == run / "evaluations" and json.loads(file.read_text())["preset"] is None
    assert main(["eval", str(run / "model"), "--samples", "1", *SMALL[-4:], "--out", str(run / "again.json")]) == 0
    again = capsys.readouterr().out.splitlines()  # the same model, as a directory
    assert again[:-1] == [head, greedy, *counts] and again[-1] == f"written: {run / 'again.json'}"
    assert main(["compare", str(run), str(run / "again.json")]) == 0
    assert "B is better on 0 problems, A on 0, equal on 8" in capsys.readouterr().out


def test_run_json_lists_the_changes_of_the_method(run: Path) -> None:
    method = json.loads((run / "run.json").read_text())["method"]
    assert method["name"] == "gspo" and "group_size: 16 -> 4" in method["changed"]


def test_eval_accepts_truncated_and_greedy_sampling(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eight = ["--problems", "8", "--sampling.max_tokens", "12", "--out", "out/x.json"]
    assert main(["eval", "calculator", "--samples", "4", "--sampling.temperature", "0", *eight]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:] == lines[10].split()[1:]  # four greedy answers are one
    assert [line.split()[0] for line in lines[10:15]] == ["avg@4", "pass@2", "pass@4", "maj@2", "maj@4"]
    assert any("tokens on average" in line for line in lines[15:])
    assert main(["eval", str(run), "--samples", "1", "--sampling.top_k", "1", *eight]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:] == lines[10].split()[1:] and lines[9] == "calculator, temperature 1, top_k 1"
    assert main(["eval", str(run), "--sampling.top_q", "1"]) == 2
    assert "did you mean --sampling.top_p?" in capsys.readouterr().err
    assert main(["eval", "calculator", *eight[:-1], "out"]) == 2  # a directory
    assert "--out FILE.json" in capsys.readouterr().err
    assert list(home.iterdir()) == [home / "out"] and len(list((home / "out").iterdir())) == 1


def test_samples_differ_and_are_reproducible(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for words in (["-n", "4"], ["-n", "4"], ["-n", "1", "--sampling.temperature", "1"], ["-n", "4", "--seed", "1"]):
        assert main(["sample", str(run), "7*5+8-9=", *words]) == 0
        outputs.append(capsys.readouterr().out.splitlines())
    first, again, one, other = outputs
    assert len(first) == 4 and len(set(first)) > 1 and first == again and one == first[:1] and other != first


def test_the_accuracy_summary_has_the_first_and_the_last_evaluation(tmp_path: Path) -> None:
    lines = [
        {"eval/accuracy_greedy": x, "eval/low_greedy": x - 0.1, "eval/high_greedy": x + 0.1} for x in (0.3, 0.6, 0.8)
    ]
    text = "".join(json.dumps({"iteration": i} | line) + "\n" for i, line in enumerate([*lines[:2], {}, lines[2], {}]))
    (tmp_path / "metrics.jsonl").write_text(text)
    assert held_out_summary(RunLayout(tmp_path)) == "\n  held-out greedy 0.300 -> 0.800  (95 % interval 0.700 .. 0.900)"
    score = {"eval/score_greedy": 2.5, "eval/score_low_greedy": 2.0, "eval/score_high_greedy": 3.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 0} | score) + "\n")
    assert held_out_summary(RunLayout(tmp_path)) == "\n  held-out greedy score 2.500  (95 % interval 2.000 .. 3.000)"
    (tmp_path / "metrics.jsonl").write_text("")
    assert held_out_summary(RunLayout(tmp_path)) == ""


def test_a_terminal_gets_one_live_line_that_fits_its_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = on_a_terminal("train", *SMALL, "--iterations", "3", "--out", "o", cwd=tmp_path, TERM="xterm", NO_COLOR="")
    plain = [line for line in got.replace("\r\n", "\n").split("\n") if "held-out" in line]
    assert plain[0].startswith("0/3  held-out") and len(plain) == 5 and "\r" not in got.replace("\r\n", "")
    monkeypatch.delenv("NO_COLOR", raising=False)
    got = on_a_terminal("train", *SMALL, "--iterations", "3", "--out", "o", cwd=tmp_path, TERM="xterm")
    assert "\x1b" not in got
    (live,) = [line for line in got.replace("\r\n", "\n").split("\n") if "\r" in line]
    shown = live.split("\r")[1:]
    # A slow machine also shows the seconds within an iteration, on the same line.
    assert [first for first, _ in groupby(text.split("  ")[0] for text in shown)] == ["0/3", "1/3", "2/3", "3/3"]
    assert all(len(text) < 60 for text in shown)
    assert all(len(b) >= len(a.rstrip()) for a, b in pairwise(shown))  # each line covers the one before
    assert len(list((tmp_path / "o").iterdir())) == 2


def wait_for(path: Path, lines: int) -> None:
    until = time.monotonic() + 60
    while not (path.is_file() and path.read_text().count("\n") >= lines) and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("presses", [1, 2])
def test_control_c(presses: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once: checkpoint, report and the resume command. Twice: an immediate end without loss of saved data."""
    program, env = (GROUPWISE, dict(os.environ)) if presses == 1 else (["groupwise"], environment())
    words = [*program, "train", *SMALL, "--iterations", "5000", "--out", "o", "--name", "x", "--save.every", "1"]
    with (tmp_path / "output").open("w") as file:
        process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=file, stderr=file)
        while not (found := list(tmp_path.glob("o/x-*"))) and process.poll() is None:
            time.sleep(0.01)
        (stopped,) = found
        wait_for(stopped / "metrics.jsonl", 3)
        (pid,) = re.findall(r"^pid (\d+) ", RunLayout(stopped).lock.read_text())
        for _ in range(presses):
            os.kill(int(pid), signal.SIGINT)
        assert process.wait(timeout=60) == 130
    text = (tmp_path / "output").read_text()
    assert "Traceback" not in text and f"groupwise resume o/{stopped.name}" in text, text
    assert (stopped / "report.html").is_file() and not (stopped / "model").exists()
    if presses == 1:
        assert "interrupted after " in text and "held-out greedy" in text and "report: " in text
        assert main(["eval", str(stopped), "--problems", "2", "--samples", "1"]) == 0
        assert "the model of iteration " in capsys.readouterr().err
        assert main(["report", str(stopped)]) == 0


def test_a_closed_pipe_and_a_full_disk(tmp_path: Path) -> None:
    piped = subprocess.run(
        f"set -o pipefail; '{sys.executable}' -m groupwise methods | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    assert piped.stdout.startswith("classics: ") and piped.stderr == ""
    env = os.environ | {"PYTHONUNBUFFERED": ""}  # a line stays in the buffer and fails at the end
    with open("/dev/full", "w") as full:
        done = subprocess.run([*GROUPWISE, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 6
    assert done.stderr == "error: the output could not be written: no space left on its disk\n"


def test_two_runs_in_one_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "two.html"
    assert main(["report", str(run), str(run), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n" and out.stat().st_size > 100_000
    assert main(["report", str(tmp_path)]) == 3
    assert "is not a run" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", str(run), "--out", str(tmp_path / "file" / "x.html")]) == 6
    assert "error: " in capsys.readouterr().err


def test_a_run_continues_after_its_terminal_is_closed(tmp_path: Path) -> None:
    """Progress lines are lost; the files are complete."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "groupwise", "train", *SMALL, "--iterations", "1", "--out", "o"]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # text that stays in the buffer fails at the end
    done = subprocess.run(words, cwd=tmp_path, env=buffered, stderr=writer, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    os.close(writer)
    assert list(tmp_path.glob("o/*/model/model.safetensors"))
