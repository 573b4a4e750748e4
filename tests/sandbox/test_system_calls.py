"""System calls of an answer that would reach the host: core dumps, locks, writes of its disks, leases."""

import fcntl
import threading
from pathlib import Path

import pytest

from groupwise.sandbox import ExecutionInput
from groupwise.sandbox import mounted_files as sandbox_view
from tests.sandbox.boxes import value

# Core dumps


def test_an_answer_that_crashes_is_not_dumped_and_cannot_change_that(sandbox):
    """A handler of the host gets no dump of a process that is not dumpable, nor at a limit of 1. It does at 0."""
    look = """
import ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
def f():
    before = libc.prctl(3, 0, 0, 0, 0)
    changed = [libc.prctl(4, 1, 0, 0, 0), libc.prctl(ctypes.c_uint64(4 | 1 << 32), 1, 0, 0, 0)]
    return before, changed, libc.prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)
"""
    before, changed, after, (soft, hard) = value(sandbox, look)
    assert (before, changed, after) == (0, [-1, -1], 0) and soft == hard <= 1


def test_an_answer_can_still_name_its_threads(sandbox):
    """prctl with other orders is allowed."""
    look = "import ctypes\ndef f(): return ctypes.CDLL(None).prctl(15, b'name', 0, 0, 0)"
    assert value(sandbox, look) == 0


# Locks


def test_a_lock_on_a_file_of_the_host_is_not_taken(sandbox):
    """An answer locks a file of the standard library and sleeps; the host takes the same lock meanwhile."""
    file = Path(sandbox_view.python()[1]) / "this.py"
    code = """
import fcntl, time
def f(path):
    held = open(path)
    fcntl.flock(held, fcntl.LOCK_EX)
    time.sleep(0.3)
    return True
"""
    target = f"{sandbox_view.standard()}/this.py"
    values = []
    thread = threading.Thread(target=lambda: values.append(value(sandbox, code, target)))
    with open(file) as opened:
        thread.start()
        while thread.is_alive():
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where the answer has it
            fcntl.flock(opened, fcntl.LOCK_UN)
            thread.join(0.02)
    assert values == [True]


@pytest.mark.parametrize(
    "call",
    [
        "fcntl.fcntl(file, 1024, fcntl.F_RDLCK)",  # a lease: an open for writing waits
        "fcntl.fcntl(file, 1026, 1)",  # a notice of every read in a directory
        "fcntl.fcntl(file, 37, bytes(32))",  # a lock of an open file
        "fcntl.fcntl(file, 10, 9)",  # a signal
    ],
)
def test_a_command_of_fcntl_that_reaches_further_is_refused(sandbox, call):
    code = f"import fcntl\nfile = open({sandbox_view.standard() + '/this.py'!r})\ndef f(): {call}"
    (execution,) = sandbox.run([ExecutionInput(code, "f")])
    assert execution.end_reason == "failed" and "PermissionError" in execution.error


def test_nothing_tells_an_answer_which_files_others_read(sandbox):
    assert value(sandbox, "import ctypes\ndef f(): return ctypes.CDLL(None).inotify_init1(0)") == -1


# Writes of the host's disks


def test_calls_that_write_disks_succeed_and_do_nothing(sandbox):
    """Each gets a file that is not open: the kernel would answer EBADF."""
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
def f():
    os.sync()
    with open("/tmp/a", "w") as file:
        os.fsync(file.fileno())
    return [call(63, 0, 0, 0) for call in (libc.fsync, libc.fdatasync, libc.syncfs, libc.flock, libc.sync_file_range)]
"""
    assert value(sandbox, code) == [0] * 5


# What the standard library needs


def test_a_database_in_a_file_works(sandbox):
    code = """
import sqlite3
def f():
    with sqlite3.connect("/tmp/data") as one:
        one.execute("create table t (a)")
        one.execute("insert into t values (1)")
    return sqlite3.connect("/tmp/data").execute("select a from t").fetchall()
"""
    assert value(sandbox, code) == [[1]]


def test_other_modules_that_lock_and_duplicate_files_work(sandbox):
    code = """
import fcntl, mailbox, os, shelve, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
def f():
    box = mailbox.mbox("/tmp/mail"); box.lock(); box.add("a\\n\\nb"); box.flush(); box.unlock()
    with shelve.open("/tmp/shelf") as shelf: shelf["a"] = 1
    with tempfile.TemporaryFile() as file:
        copy = os.dup(file.fileno()); os.set_blocking(copy, False); os.set_inheritable(copy, True)
        fcntl.lockf(copy, fcntl.LOCK_EX)
    with ThreadPoolExecutor(2) as threads: total = sum(threads.map(abs, (-1, -2)))
    return len(mailbox.mbox("/tmp/mail")), total
"""
    assert value(sandbox, code) == [1, 3]
