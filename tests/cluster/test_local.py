"""Processes of a run on this host: they end with it, and an error shows why one died."""

import os
from pathlib import Path

import pytest

from groupwise.cluster.local import LocalProcesses
from groupwise.data import WorkerLost

SLEEP = ["-c", "import time; time.sleep(60)"]
DEADLINE = 20.0


def test_the_error_of_a_dead_process_has_its_last_lines() -> None:
    code = "import sys; print('x' * 5000); print('no such model', file=sys.stderr); sys.exit(3)"
    with LocalProcesses({"rank 1": ["-c", code], "rank 2": SLEEP}, os.environ) as processes:
        with pytest.raises(WorkerLost) as caught:
            processes.wait_until(lambda: False, DEADLINE)
        pids = processes.pids
    assert caught.value.what == "rank 1 ended with exit code 3"
    assert caught.value.evidence.endswith("no such model") and len(caught.value.evidence) < 4100
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_the_cause_comes_before_its_consequence() -> None:
    """Rank 1 only lost its connection; rank 2 was killed."""
    lost, killed = f"import sys; sys.exit({WorkerLost.code})", "import os; os.kill(os.getpid(), 9)"
    with LocalProcesses({"rank 1": ["-c", lost], "rank 2": ["-c", killed]}, os.environ) as processes:
        for child in processes._started.values():
            child.process.wait(DEADLINE)
        with pytest.raises(WorkerLost, match="rank 2 was killed by SIGKILL"):
            processes.check()


def test_a_process_that_is_not_ready_in_time() -> None:
    with LocalProcesses({"rank 1": SLEEP}, os.environ) as processes, pytest.raises(WorkerLost, match="not ready after"):
        processes.check(patience=0.1)
        processes.wait_until(lambda: False, 0.1)
