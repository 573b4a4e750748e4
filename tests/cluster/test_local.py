"""Processes of a run on this host: they end with it, and an error shows why one died."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from groupwise.cluster.child_process import ChildProcess
from groupwise.cluster.local import LocalProcesses
from groupwise.cluster.processes import ProcessEnd
from groupwise.core import Storage, WorkerLost
from groupwise.runs import process_logs
from tests.processes import PATIENCE, wait_until_gone

SLEEP = ["-c", "import time; time.sleep(60)"]


def test_the_error_of_a_dead_process_has_its_last_lines() -> None:
    code = "import sys; print('x' * 5000); print('no such model', file=sys.stderr); sys.exit(3)"
    with LocalProcesses({"rank 1": ["-c", code], "rank 2": SLEEP}, os.environ) as processes:
        with pytest.raises(WorkerLost) as caught:
            processes.wait_for(lambda: ["rank 1"], PATIENCE)
        pids = processes.pids
    assert caught.value.what == "rank 1 ended with exit code 3"
    assert caught.value.evidence.endswith("no such model") and len(caught.value.evidence) < 4100
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_a_process_gets_what_is_added_for_it_alone(tmp_path: Path) -> None:
    code = "import os; print(os.environ['A'], os.environ.get('B'), flush=True)"
    arguments, own = {f"rank {i}": ["-c", code] for i in (1, 2)}, {"rank 2": {"A": "2", "B": "3"}}
    with LocalProcesses(arguments, {"A": "1"}, own=own) as processes:
        for child in processes._started.values():
            child.process.wait(PATIENCE)
        assert processes.printed() == {"rank 1": ["1 None"], "rank 2": ["2 3"]}


def test_a_process_whose_output_is_read_meanwhile_loses_none_of_it() -> None:
    """They share the position in the file."""
    child = ChildProcess(["-u", "-c", "for i in range(5000): print(i)"], {})
    while child.process.poll() is None:
        assert all(line.isdecimal() for line in child.printed())
    assert os.fstat(child.log.fileno()).st_size == sum(len(f"{i}\n") for i in range(5000))


def test_the_cause_comes_before_its_consequence() -> None:
    """Rank 1 only lost its connection; rank 2 was killed."""
    lost, killed = f"import sys; sys.exit({WorkerLost.code})", "import os; os.kill(os.getpid(), 9)"
    with LocalProcesses({"rank 1": ["-c", lost], "rank 2": ["-c", killed]}, os.environ) as processes:
        for child in processes._started.values():
            child.process.wait(PATIENCE)
        with pytest.raises(WorkerLost, match="rank 2 was killed by SIGKILL"):
            processes.check()


def test_the_cause_is_awaited_when_its_consequence_ends_first() -> None:
    lost, killed = f"import sys; sys.exit({WorkerLost.code})", "import os, time; time.sleep(1); os.kill(os.getpid(), 9)"
    with LocalProcesses({"rank 1": ["-c", lost], "rank 2": ["-c", killed]}, os.environ) as processes:
        processes._started["rank 1"].process.wait(PATIENCE)
        assert (cause := processes.cause(PATIENCE)) and cause.what == "rank 2 was killed by SIGKILL"


def test_a_process_that_only_lost_its_connection_is_no_cause() -> None:
    with LocalProcesses({"rank 1": ["-c", f"import sys; sys.exit({WorkerLost.code})"]}, os.environ) as processes:
        assert processes.cause(PATIENCE) is None and processes.deaths()


def test_the_output_of_processes_is_kept_and_an_error_has_that_of_its_own(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for text in ("first", "second"):
        code = f"print({text!r}, flush=True); exit(3)"
        with LocalProcesses({"rank 1": ["-c", code]}, os.environ, logs) as processes:
            assert (cause := processes.cause(PATIENCE)) and cause.evidence == text
    assert (logs / "rank-1.log").read_text() == "first\nsecond\n"


def test_a_log_keeps_its_last_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_logs, "LARGEST", 4)
    for text in (b"12345", b"67"):
        with process_logs.open_log(tmp_path / "logs" / "engine-0.log") as log:
            log.write(text)
    assert (tmp_path / "logs" / "engine-0.log").read_bytes() == b"234567"
    with pytest.raises(Storage, match="the output of a process could not be written"):
        process_logs.open_log(tmp_path / "logs" / "engine-0.log" / "rank-1.log")


def test_a_process_that_is_not_ready_in_time() -> None:
    with LocalProcesses({"rank 1": SLEEP}, os.environ) as processes, pytest.raises(WorkerLost, match="not ready after"):
        assert processes.cause(0.1) is None
        processes.wait_for(lambda: ["rank 1"], 0.1)


def test_the_end_of_a_child_is_its_own_or_that_of_the_caller() -> None:
    own, asleep, stopped = (
        ChildProcess(["-c", "print(1); exit(3)"], {}),
        ChildProcess(SLEEP, {}),
        ChildProcess(SLEEP, {}),
    )
    own.process.wait(PATIENCE)
    os.kill(stopped.pid(), signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid(), os.WSTOPPED | os.WNOWAIT)  # else it may get the next signal first
    assert own.status() == own.end() == (3, ["1"])
    assert asleep.status()[0] is None and asleep.end(PATIENCE)[0] is None
    assert stopped.end(0.1)[0] is None and stopped.process.returncode == -signal.SIGKILL
    assert (
        str(ProcessEnd(-9)) == "was killed by SIGKILL"
        and str(ProcessEnd(0, launcher_message="NodeDied")) == "was lost: NodeDied"
    )


CHILD = ["-c", "print('ready', flush=True); import time; time.sleep(600)"]
HELD = f"""
from groupwise.cluster.child_process import ChildProcess
child = ChildProcess({CHILD}, {{}}, bound=True)
"""
LOCAL = f"""
from groupwise.cluster.local import LocalProcesses
processes = LocalProcesses({{'rank 1': {CHILD}}}, {{}}).__enter__()
child = processes._started['rank 1']
"""
WAIT = """
import time
while not child.status()[1]:
    time.sleep(0.01)
print(child.pid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("start", [HELD, LOCAL], ids=["held", "local"])
def test_a_stopped_child_ends_with_a_killed_parent(start: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", start + WAIT], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    holder.kill()
    holder.wait(PATIENCE)
    holder.stdout.close()
    try:
        wait_until_gone([pid])
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it holds the output of the tests open
