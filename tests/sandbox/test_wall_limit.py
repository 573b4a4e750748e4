"""The limit of wall time: sleep counts, a wait for a busy processor does not, and no answer can feign one."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from groupwise.sandbox import ExecutionInput, ExecutionLimits, Sandbox
from groupwise.sandbox.wall_limit import LOOK, MOST, WallTimeLimit, process_of, thread_times
from tests.processes import state_of, wait_until
from tests.sandbox.boxes import children, needed, servers

Activity = Callable[[float], dict[int, float]]
"""The active seconds of each thread, at a time."""


def ended(activity: Activity, *, wall: float = 10.0, late: float = 0.0) -> tuple[str, float]:
    """How and when an execution with these threads ends, by a clock of the test; each look comes `late` seconds."""
    now = 100.0
    limit = WallTimeLimit(wall, lambda: activity(now - 100.0), now)
    while now < 100.0 + 99 * wall:
        now = limit.next_check_time_seconds + late
        if end := limit.look(now):
            return end, now - 100.0
    return "", now - 100.0


def test_sleep_ends_at_the_limit() -> None:
    end, seconds = ended(lambda t: {1: 0.0})
    assert end == "wall" and seconds == pytest.approx(10.0, abs=0.02)


def test_a_wait_for_a_processor_ends_after_ten_times_the_limit_and_is_the_machines_fault() -> None:
    end, seconds = ended(lambda t: {1: t})
    assert end == "busy" and seconds == pytest.approx(MOST * 10.0, abs=0.02)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.89])
def test_time_that_is_partly_active_counts_in_part(share: float) -> None:
    end, seconds = ended(lambda t: {1: share * t})
    assert end == "wall" and seconds == pytest.approx(10.0 / (1 - share), rel=0.01)


def test_many_waiting_threads_save_up_no_time() -> None:
    """Sixty threads wait for three seconds, then all sleep: the sum of their times would pay for 180 seconds."""
    end, seconds = ended(lambda t: {i: min(t, 3.0) for i in range(60)})
    assert end == "wall" and seconds == pytest.approx(13.0, abs=0.02)
    end, seconds = ended(lambda t: dict.fromkeys(range(60), 0.1 * t))
    assert end == "wall" and seconds == pytest.approx(10 / 0.9, abs=0.02)


def test_threads_that_take_turns_are_active() -> None:
    """Each of two threads works every other two seconds."""
    turns = {0: lambda t: t // 4 * 2 + min(t % 4, 2), 1: lambda t: t // 4 * 2 + max(t % 4 - 2, 0)}
    assert ended(lambda t: {i: f(t) for i, f in turns.items()})[0] == "busy"


def test_a_wait_that_the_kernel_reports_at_its_end_counts() -> None:
    """The thread waits four seconds at a time, and its time changes only then."""
    assert ended(lambda t: {1: t // 4 * 4})[0] == "busy"


def test_an_answer_saves_up_no_activity_for_later() -> None:
    """One thread reports more time than has passed, as after a long wait; sleep after it counts from zero."""
    end, seconds = ended(lambda t: {1: 50.0 if t > 5 else 0.0})
    assert end == "wall" and 15.0 < seconds < 17.0


def test_a_pause_of_this_process_counts_for_no_longer_than_the_planned_look() -> None:
    """A laptop that was closed, or a container that was paused: nothing ran."""
    end, seconds = ended(lambda t: {1: 0.0}, late=5.0, wall=10.0)
    assert end == "wall" and seconds == pytest.approx(10 * (LOOK + 5.0), abs=6.1)


def test_a_thread_id_that_is_used_again_takes_nothing_away() -> None:
    assert ended(lambda t: {1: t if t < 7 else t - 7, 2: 0.0})[0] == "busy"


def test_without_readings_all_time_counts() -> None:
    end, seconds = ended(lambda t: {})
    assert end == "wall" and seconds == pytest.approx(10.0, abs=0.02)


# The readings of the kernel


def test_threads_of_a_process_and_of_its_descendants_are_read() -> None:
    line = [sys.executable, "-c", "import os, time\nif os.fork(): time.sleep(99)\nwhile True: pass"]
    with subprocess.Popen(line, start_new_session=True) as process:
        file = os.pidfd_open(process.pid)
        try:
            while len(inside := children(process.pid)) < 1 or sum(thread_times(process.pid).values()) < 0.05:
                time.sleep(0.01)
            assert process_of(file) == process.pid
            assert set(thread_times(process.pid)) == {process.pid, *inside}
        finally:
            os.killpg(process.pid, 9)
            process.wait()
        assert process_of(file) == 0 and thread_times(0) == thread_times(process.pid) == {}
        os.close(file)


def test_a_sleeping_thread_has_no_time_and_a_computing_one_has() -> None:
    done, ids = threading.Event(), []
    sleeping = threading.Thread(target=lambda: (ids.append(threading.get_native_id()), done.wait()))
    sleeping.start()
    try:
        wait_until(lambda: ids and state_of(Path(f"/proc/self/task/{ids[0]}")) == "S", "the thread does not wait")
        before = thread_times(os.getpid())[ids[0]]
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        times = thread_times(os.getpid())
        assert times[threading.get_native_id()] >= 0.19 and times[ids[0]] - before < 0.1
    finally:
        done.set()
        sleeping.join()


# On a busy machine. A right answer is `done`, or `busy` where the machine gives it next to nothing: never wrong.

BURNS = "import time\ndef f(s):\n  while time.process_time() < s: pass\n  return 3"
SLEEPS = "import time\ndef f(s): time.sleep(99)"
FOREVER = "def f(s):\n  while True: pass"
FEIGNED = """
import os, threading, time
def f(s):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.nice(19)
    def spin():
        while time.process_time() < s: os.sched_yield()
    threads = [threading.Thread(target=spin) for _ in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    time.sleep(99)
"""
"""Gives up its share of the processors, lets twenty threads wait, then sleeps."""


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    needed()
    sandbox = Sandbox(ExecutionLimits(cpu_seconds=0.4, wall_seconds=1.0), boxes=1)
    sandbox.info()
    yield sandbox
    sandbox.close()


def end(sandbox: Sandbox, code: str, seconds: float) -> str:
    (execution,) = sandbox.run([ExecutionInput(code, "f", (seconds,))])
    return execution.end_reason


@pytest.mark.t(20)
def test_twenty_spinning_processes_beside_an_answer(box: Sandbox) -> None:
    with spinning(20):
        assert end(box, BURNS, 0.25) in ("done", "busy")
        assert end(box, FOREVER, 0) in ("cpu", "busy")
        assert end(box, SLEEPS, 0) == "wall"
        assert end(box, FEIGNED, 0.2) in ("wall", "cpu")


@contextmanager
def throttled(percent: int, pids: list[int]) -> Iterator[None]:
    """A cgroup (version 2 or 1) in which these processes get this share of one processor. Skips where none is."""
    name, quota = f"groupwise-{uuid4().hex[:8]}", percent * 1000
    for root, file, text in (
        (Path("/sys/fs/cgroup"), "cpu.max", f"{quota} 100000"),
        (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", str(quota)),
    ):
        group = root / name
        try:
            (root / "cgroup.procs").read_text()  # it is the root of a hierarchy
            group.mkdir()
        except OSError:
            continue
        moved = []
        try:
            with suppress(OSError):
                (group / file).write_text(text)
                for pid in pids:
                    (group / "cgroup.procs").write_text(str(pid))
                    moved.append(pid)
            if moved == pids:
                yield
                return
        finally:
            for pid in moved:
                (root / "cgroup.procs").write_text(str(pid))
            until = time.monotonic() + 20
            while group.exists() and time.monotonic() < until:  # the kernel keeps it until its last process has ended
                with suppress(OSError):
                    group.rmdir()
                time.sleep(0.05)
    pytest.skip("this machine lets no test make a cgroup with a limit of CPU time")


@pytest.mark.t(20)
def test_a_twentieth_of_a_processor(box: Sandbox) -> None:
    (first,) = servers(box)
    with throttled(5, [first, *children(first)]):
        assert end(box, BURNS, 0.1) in ("done", "busy")
        assert end(box, SLEEPS, 0) == "wall"


@pytest.mark.t(20)
def test_an_answer_that_the_machine_keeps_waiting_has_no_result() -> None:
    """At a twentieth of a processor, ten times the limit of wall time is before the limit of CPU time."""
    needed()
    with closing(Sandbox(ExecutionLimits(cpu_seconds=0.3, wall_seconds=0.3), boxes=1)) as sandbox:
        sandbox.info()
        (first,) = servers(sandbox)
        with throttled(5, [first, *children(first)]):
            (execution,) = sandbox.run([ExecutionInput(FOREVER, "f", (0,))])
    assert execution.end_reason == "busy" and execution.no_result and "too busy" in execution.error


def test_an_answer_that_stops_itself_is_asleep() -> None:
    """Without bubblewrap: inside, the kernel lets the first process of a namespace not stop itself."""
    needed()
    stops = "import os, signal\ndef f(s): os.kill(os.getpid(), signal.SIGSTOP)"
    with closing(Sandbox(ExecutionLimits(cpu_seconds=0.5, wall_seconds=1.0), boxes=1, unsafe=True)) as sandbox:
        assert end(sandbox, stops, 0) == "wall"
