"""The sandbox: values, limits, fresh state, order, replacement of lost processes, and errors at the start."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from groupwise.core import MissingRequirement
from groupwise.sandbox import ExecutionInput, ExecutionLimits, ExecutionResult, Sandbox
from groupwise.sandbox import bubblewrap_command as sandbox_command
from groupwise.sandbox import sandbox as sandbox_room
from groupwise.sandbox.sandbox import missing_requirement, sandbox_trial
from tests.processes import wait_until_gone
from tests.sandbox.boxes import children, needed, servers


@pytest.fixture(scope="module")
def sandbox():
    needed()
    pool = Sandbox(
        ExecutionLimits(cpu_seconds=0.5, wall_seconds=60.0, memory_bytes=1 << 28, output_bytes=1 << 16), boxes=2
    )
    yield pool
    pool.close()


def call(sandbox: Sandbox, code: str, *args: object) -> ExecutionResult:
    return sandbox.run([ExecutionInput(code, "f", args)])[0]


def typed(sandbox: Sandbox, code: str, stdin: str = "") -> ExecutionResult:
    return sandbox.run([ExecutionInput(code, stdin=stdin)])[0]


# Values

PLAIN = [
    None, True, 0, -7, 2**200, 0.1, -0.0, 1e308, "", "é\ud800\x00\u2028", [], [1, [2.5, None]], {"a": {"b": [True]}},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_return_unchanged(sandbox, value):
    execution = call(sandbox, "def f(x): return x", value)
    assert (
        execution.end_reason == "done"
        and execution.return_value == value
        and type(execution.return_value) is type(value)
    )
    assert repr(execution.return_value) == repr(value)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("float('nan')", "returned nan"), ("float('inf')", "returned inf"), ("1j", "type complex"),
        ("{1, 2}", "type set"), ("b'1'", "type bytes"), ("{1: 2}", "key that is not a string"), ("f", "type function"),
        ("__import__('decimal').Decimal(1)", "type Decimal"), ("range(3)", "type range"), ("object()", "type object"),
        ("type('int', (int,), {})(3)", "type int"), ("[type('T', (str,), {})('a')]", "type T"),
        ("__import__('collections').OrderedDict(a=1)", "type OrderedDict"), ("10**5000", "ValueError"),
        ("(lambda a: (a.append(a), a)[1])([])", "RecursionError"), ("1 / 0", "ZeroDivisionError"),
        ("exit(0)", "NameError"), ("__import__('sys').exit(0)", "SystemExit: 0"), ("g()", "NameError"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_plain_json_is_a_failure(sandbox, returned, error):
    execution = call(sandbox, f"def f(): return {returned}")
    assert execution.end_reason == "failed" and execution.return_value is None and error in execution.error


def test_a_tuple_is_a_list(sandbox):
    assert call(sandbox, "def f(): return (1, (2,))").return_value == [1, [2]]


@pytest.mark.parametrize(
    ("code", "error"),
    [("", "there is no f"), ("def f(", "SyntaxError"), ("def g(): pass", "there is no f"), ("f = 1", "not callable"),
     ("def f(x): pass", "TypeError"), ("def f():\n  raise ValueError('x' * 10**6)", "ValueError: xxx")],
)  # fmt: skip
def test_code_that_does_not_answer(sandbox, code, error):
    execution = call(sandbox, code)
    assert execution.end_reason == "failed" and error in execution.error and len(execution.error) <= 200


@pytest.mark.parametrize(
    ("code", "stdin", "expected"),
    [
        ("print(sum(map(int, input().split())))", "1 2 3\n", ExecutionResult("done", "6\n")),
        ("import sys\nsys.stdout.write(sys.stdin.read())", "é\ud800\n\n", None),
        ("if __name__ == '__main__': print(1)", "", ExecutionResult("done", "1\n")),
        ("import sys\nprint(1)\nsys.exit()", "", ExecutionResult("done", "1\n")),
        ("import sys\nprint(1)\nsys.exit(3)", "", ExecutionResult("failed", "1\n", "exit code 3")),
        ("import sys\nsys.exit('no')", "", ExecutionResult("failed", "", "exit code 1")),
        ("print(1)\nraise ValueError", "", ExecutionResult("failed", "1\n", "exit code 1")),
        ("input()", "", ExecutionResult("failed", "", "exit code 1")),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print(2))).start()\nprint(1)", "",
         ExecutionResult("done", "1\n2\n")),
        ("import os\nos.write(1, b'\\xff')", "", ExecutionResult("done", "\ufffd")),
        ("import dataclasses\n@dataclasses.dataclass\nclass A:\n  x: 'int' = 1\nprint(A())", "",
         ExecutionResult("done", "A(x=1)\n")),
    ],
)  # fmt: skip
def test_programs(sandbox, code, stdin, expected):
    execution = typed(sandbox, code, stdin)
    if expected is None:  # half a surrogate pair returns as three bytes that are not UTF-8
        assert execution.end_reason == "done" and execution.return_value == "é\ufffd\ufffd\ufffd\n\n"
    else:
        assert (execution.end_reason, execution.return_value, execution.error) == (
            expected.end_reason,
            expected.return_value,
            expected.error,
        )


def test_a_large_input_and_a_large_value_are_passed(sandbox):
    assert call(sandbox, "def f(x): return len(x)", "é" * 3_000_000).return_value == 3_000_000
    assert len(call(sandbox, "def f(n): return 'a' * n", 65_000).return_value) == 65_000


def test_an_input_that_does_not_fit_into_memory_is_a_failure_and_not_lost():
    needed()
    tight = Sandbox(ExecutionLimits(memory_bytes=1 << 23), boxes=1)
    execution = call(tight, "def f(x): return len(x)", "a" * (1 << 23))
    tight.close()
    assert execution.end_reason == "failed"


def test_an_answer_that_could_not_be_confined_is_lost_and_does_not_run(monkeypatch, tmp_path):
    needed()
    server = tmp_path / "server.py"
    source = sandbox_command.SERVER.read_text()
    server.write_text(source.replace("    os.setsid()\n", "    raise OSError('no session')\n"))
    monkeypatch.setattr(sandbox_room, "SERVER", server)
    sandbox = Sandbox(boxes=1)
    execution = call(sandbox, "def f(): return 1")
    sandbox.close()
    assert (
        execution.end_reason == "lost" and execution.return_value is None and "could not be confined" in execution.error
    )


# Limits


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("while True: pass", "cpu"),
        ("10 ** 10 ** 8", "cpu"),
        ("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", "cpu"),
        ("import signal\nfor s in (1, 2, 14, 15, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass", "cpu"),
        ("import os\nos.close(1)\nwhile True: pass", "cpu"),
        ("while True: print('x' * 999)", "output"),
        ("print('x' * (1 << 17))", "output"),
        ("bytearray(1 << 29)", "failed"),
        ("a = []\nwhile True: a.append(bytes(1 << 24))", "failed"),
        ("open('/tmp/a', 'wb').write(bytes(1 << 25))", "failed"),
        ("a = [bytes(1 << 20)] * 99\nfor i in range(99): open(f'/tmp/{i}', 'wb').writelines(a)", "failed"),
        ("import os\nos.abort()", "failed"),
        ("import ctypes\nctypes.string_at(0)", "failed"),
        ("def f(): f()\nf()", "failed"),
    ],
)  # fmt: skip
def test_limits(sandbox, code, end):
    assert typed(sandbox, code).end_reason == end
    assert typed(sandbox, "print(1)").return_value == "1\n"


def test_time_spent_asleep_is_bounded_too():
    needed()
    hasty = Sandbox(ExecutionLimits(cpu_seconds=1.0, wall_seconds=1.0), boxes=2)
    asleep = "import time\nwhile True: time.sleep(1)"
    thread = "import threading, time\nthreading.Thread(target=lambda: time.sleep(99)).start()"
    assert [execution.end_reason for execution in hasty.run([ExecutionInput(asleep), ExecutionInput(thread)])] == [
        "wall",
        "wall",
    ]
    hasty.close()


def test_invalid_limits_are_an_error():
    for wrong in (
        {"cpu_seconds": 0},
        {"cpu_seconds": 3, "wall_seconds": 2},
        {"wall_seconds": float("inf")},
        {"memory_bytes": 0},
        {"output_bytes": -1},
    ):
        with pytest.raises(ValueError, match="cpu <= wall"):
            ExecutionLimits(**wrong)


# Fresh state


def test_nothing_outlives_an_execution(sandbox):
    spoil = """
import builtins, json, os, sys, random, tempfile
builtins.len = lambda x: 42
json.dumps = None
sys.modules["math"] = None
random.seed(5); random.random()
open("/tmp/left", "w").write("x")
tempfile.mkdtemp()
os.environ["LEFT"] = "x"
def f(): return 1
"""
    look = """
import json, math, os, random
def f(): return [len([]), callable(json.dumps), os.listdir("/tmp"), dict(os.environ), random.random(), os.getcwd()]
"""
    fresh = call(sandbox, look)
    sandbox.run([ExecutionInput(spoil, "f")] * 4)
    assert call(sandbox, look).return_value == fresh.return_value == [0, True, [], {}, fresh.return_value[4], "/tmp"]


def test_runs_are_repeatable(sandbox):
    code = "import random\ndef f(): return [random.random(), hash('a'), list({'x', 'y', 'z'})]"
    assert len({json.dumps(execution.return_value) for execution in sandbox.run([ExecutionInput(code, "f")] * 6)}) == 1


# Order, threads, loops

SLOWER_FIRST = [
    ExecutionInput("import time\ndef f(i, s):\n  time.sleep(s)\n  return i", "f", (i, (9 - i) / 100)) for i in range(10)
]


def test_results_keep_their_order(sandbox):
    assert [execution.return_value for execution in sandbox.run(SLOWER_FIRST)] == list(range(10))


def test_many_threads_and_many_loops(sandbox):
    async def gathered() -> list[int]:
        return [execution.return_value for execution in await asyncio.gather(*map(sandbox.execute, SLOWER_FIRST))]

    with ThreadPoolExecutor(4) as threads:
        loops = [threads.submit(asyncio.run, gathered()) for _ in range(2)]
        blocking = [threads.submit(sandbox.run, SLOWER_FIRST) for _ in range(2)]
        assert all(f.result() == list(range(10)) for f in loops)
        assert all([execution.return_value for execution in f.result()] == list(range(10)) for f in blocking)
    assert len(servers(sandbox)) <= 2


# Sandbox processes


def test_a_process_that_dies_is_replaced_and_its_program_runs_again(sandbox):
    sandbox.run(SLOWER_FIRST)
    before = servers(sandbox)
    assert len(before) == 2
    os.killpg(before[0], signal.SIGKILL)
    assert [execution.return_value for execution in sandbox.run(SLOWER_FIRST)] == list(range(10))
    after = servers(sandbox)
    assert len(after) == 2 and before[0] not in after and before[1] in after


def test_two_processes_lost_in_a_row_give_lost():
    needed()
    sandbox = Sandbox(ExecutionLimits(cpu_seconds=0.5, wall_seconds=60), boxes=1)
    sandbox.run([ExecutionInput("print(1)")])
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, [ExecutionInput("import time\ntime.sleep(50)")])
        killed = []
        while not running.done():
            first = servers(sandbox)
            # A started process, with its server and a running answer inside.
            if first and first != killed and sandbox._pool.workers[0].info and len(children(first[0])) >= 3:
                os.killpg(first[0], signal.SIGKILL)
                killed = first
            time.sleep(0.01)
    (execution,) = running.result()
    assert execution.end_reason == "lost" and execution.return_value is None and "exit code -9" in execution.error
    assert sandbox.run([ExecutionInput("print(1)")])[0].return_value == "1\n"
    sandbox.close()


def test_close_leaves_no_process_and_can_be_called_twice():
    needed()
    sandbox = Sandbox(boxes=1)
    sandbox.run([ExecutionInput("print(1)")])
    (box,) = servers(sandbox)
    inside = children(box)
    assert inside
    sandbox.close()
    sandbox.close()
    wait_until_gone([box, *inside])


def test_sandbox_processes_end_with_their_host():
    """Also those that are stopped: the kernel kills them, no code of theirs."""
    needed()
    script = (
        "import os, signal; from groupwise.sandbox import ExecutionInput, Sandbox; from tests.sandbox.boxes import *\n"
        "s = Sandbox(boxes=2); s.run([ExecutionInput('print(1)')] * 9); print(*children(os.getpid()), flush=True)\n"
        "s.run([ExecutionInput('import time; time.sleep(60)', None)])"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        inside = [int(pid) for pid in host.stdout.readline().split()]
        assert len(inside) >= 4
        for pid in inside:
            os.kill(pid, signal.SIGSTOP)
        host.kill()
    wait_until_gone(inside)


# Errors at the start


def test_without_bubblewrap_the_error_has_a_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirement) as caught:
        Sandbox()
    assert caught.value.code == 4
    assert "bwrap" in caught.value.evidence and "apt-get install bubblewrap" in caught.value.fix


@pytest.mark.parametrize(
    ("words", "namespaces"),
    [
        ("bwrap: No permissions to create new namespace", True),
        ("bwrap: Can't find source path /x: No such file", False),
    ],
)
def test_the_output_of_bubblewrap_is_the_evidence(monkeypatch, tmp_path, words, namespaces):
    """bwrap is under /tmp, in a directory closed to other users. The fix names user namespaces if they are missing."""
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\necho {shlex.quote(words)} >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert missing_requirement() is None
    with pytest.raises(MissingRequirement) as caught:
        sandbox_trial()
    assert "does not start" in caught.value.what and caught.value.evidence == words
    assert ("user namespaces" in caught.value.fix) == namespaces


def test_a_machine_without_linux_gets_an_error(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    error = missing_requirement()
    assert error is not None and "darwin" in error.evidence


def test_unsafe_runs_without_bubblewrap_under_the_same_limits(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox = Sandbox(ExecutionLimits(cpu_seconds=0.3, wall_seconds=60.0), boxes=1, unsafe=True)
    try:
        assert call(sandbox, "def f(x): return x + 1", 1).return_value == 2
        assert typed(sandbox, "while True: pass").end_reason == "cpu"
        assert typed(sandbox, "import os; print(dict(os.environ))").return_value == "{}\n"
        mark = tmp_path / "mark"
        assert call(sandbox, f"def f(): return open({str(mark)!r}, 'w').write('x')").return_value == 1
        assert mark.exists(), "unsafe protects no file, and the documentation says so"
    finally:
        sandbox.close()


def test_a_trial_returns_the_state_of_the_process():
    needed()
    info = sandbox_trial()
    assert info["python"] == sys.version.split()[0] and info["calls"] is True
