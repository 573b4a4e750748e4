"""Agents that are programs: their environment, reward and output, failures, and the end of all their processes."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from groupwise.core import EngineLost, Usage
from groupwise.data import GenerationRequest, Ids, Outcome, Prompt, Sample, Verdict
from groupwise.rollout.agents import programs
from groupwise.rollout.agents.programs import AgentProgram
from tests.rollout.test_agents import ran
from tests.rollout.test_endpoint_server import says

ASKS = """
import json, os, sys, urllib.request
def ask(text):
    body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
row = os.environ["GROUPWISE_ROW"]
row = json.loads(row if row[0] == "{" else open(row).read())
"""


def program(folder: Path, text: str) -> AgentProgram:
    file = folder / "my agent.py"
    file.write_text(ASKS + text)
    return AgentProgram.of(f"{shlex.quote(sys.executable)} {shlex.quote(str(file))}")


def sample(agent: Any, **changes: Any) -> Sample:
    (made,) = ran(agent, says(), **changes)[0].samples
    return made


def test_a_program_gets_row_and_endpoint_and_its_last_line_is_the_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    agent = program(
        tmp_path, 'print(row, ask("a"))\nprint("{\\"reward\\": 0.25}\\n", flush=True)\nprint(7, file=sys.stderr)'
    )
    made = sample(agent, runner={"output_directory": tmp_path / "agents"})
    assert made.text == "one" and made.verdict and made.verdict.value == 0.25
    assert {file.name: file.read_text() for file in (tmp_path / "agents").iterdir()} == {
        "draw-4-0.out": "{'prompt': '?', 'answer': '7'} one\n{\"reward\": 0.25}\n\n", "draw-4-0.err": "7\n",
    }  # fmt: skip


def test_without_a_reward_the_verifier_grades_the_last_answer_of_a_program(tmp_path: Path) -> None:
    async def verifier(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.wrong if sample.text == "one" else Outcome.correct)

    made = sample(program(tmp_path, 'ask("a")\nprint("{\\"reward\\": 1}")\nprint("bye")'), verifier=verifier)
    assert made.verdict == Verdict(Outcome.wrong)


def test_a_long_row_is_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LONGEST_ROW", 8)
    text = 'assert os.environ["GROUPWISE_ROW"][0] == "/"\nask("a")\nprint(json.dumps({"reward": row["answer"] == "7"}))'
    made = sample(program(tmp_path, text))
    assert made.verdict and made.verdict.outcome is Outcome.correct


def test_a_program_that_fails_is_unverifiable_with_its_last_line(tmp_path: Path) -> None:
    made = sample(program(tmp_path, 'ask("a")\nraise KeyError("boom")'))
    assert made.verdict and made.verdict.cause == "the agent: its program ended with exit code 1: KeyError: 'boom'"


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("os._exit(3)", "exit code 3"),
        ("sys.exit('no licence')", "exit code 1: no licence"),
        ("raise KeyboardInterrupt('no')", "signal 2: KeyboardInterrupt: no"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("if os.fork(): os._exit(4)\nimport time\ntime.sleep(60)", "exit code 4"),
    ],
)
def test_a_program_that_leaves_is_unverifiable(tmp_path: Path, ending: str, cause: str) -> None:
    made = sample(program(tmp_path, f'ask("a")\n{ending}'))
    assert made.verdict and made.verdict.cause == f"the agent: its program ended with {cause}"


def test_a_late_program_is_unverifiable(tmp_path: Path) -> None:
    made = sample(program(tmp_path, "import time\ntime.sleep(60)"), runner={"deadline": 0.05})
    assert made.verdict and "within 0.05 seconds" in made.verdict.cause


def test_all_processes_of_a_program_end_with_its_episode(tmp_path: Path) -> None:
    child = "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\npids = f'{os.getpid()} {child.pid}'\n"
    child += f"open({str(tmp_path / 'pids')!r}, 'w').write(pids)\nask('a')\ntime.sleep(60)"

    def lost(request: GenerationRequest) -> Ids:
        raise EngineLost("the engine is gone")

    with pytest.raises(EngineLost):
        ran(program(tmp_path, child), lost)
    pids = (tmp_path / "pids").read_text().split()
    left = (
        time.sleep(0.01) for _ in range(3000) if any(alive(int(pid)) for pid in pids)
    )  # a killed one needs a moment
    assert len(pids) == 2 and sum(1 for _ in left) < 3000, "the program's own child lives on"


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and is not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("command", ["", "no-such-program-here x", "'open"])
def test_a_command_that_cannot_be_started_is_refused(command: str) -> None:
    with pytest.raises(Usage, match="agent-command"):
        AgentProgram.of(command)


def test_no_shell_reads_a_command(tmp_path: Path) -> None:
    agent = AgentProgram.of(f"{shlex.quote(sys.executable)} -c 'pass' ; touch {tmp_path / 'here'}")
    assert agent.words[-2:] == ("touch", str(tmp_path / "here"))
    sample(agent)
    assert os.listdir(tmp_path) == []
