"""Answers that would rather be rewarded than right: none is, and the host does not notice them.

Problem and cases are known to every hack, as a model may know them; the expected values of hidden cases are not.
"""

import asyncio
import os
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from groupwise.data import Outcome, Prompt, Sample
from groupwise.sandbox import ExecutionInput, ExecutionLimits, Sandbox
from groupwise.verifiers import CodeVerifier
from tests.sandbox.boxes import children, needed, servers

REFERENCE = "def add(a, b): return a + b"
GOLD = {
    "function": "add",
    "cases": [{"args": [1, 2], "expected": 3}, {"args": [40, 2], "expected": 42}],
    "reference": REFERENCE,
    "generator": "import random\ndef generate(seed): return [random.Random(seed).randint(99, 999), seed + 7]",
}
_, *SECTIONS = Path(__file__).with_name("hacks.txt").read_text().split("\n## ")
HACKS = {name: code for name, _, code in (section.partition("\n") for section in SECTIONS)}


@pytest.fixture(scope="module")
def verifier():
    needed()
    verifier = CodeVerifier(
        Sandbox(ExecutionLimits(cpu_seconds=0.4, wall_seconds=3.0, memory_bytes=1 << 28, output_bytes=1 << 16), boxes=2)
    )
    for sandbox in (verifier.sandbox, verifier.references):
        sandbox.run([ExecutionInput("import time\ntime.sleep(0.1)")] * 4)  # all processes have started
    yield verifier
    verifier.sandbox.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A host with targets: a file, a TCP socket and a Unix socket."""
    home = tmp_path_factory.mktemp("host")
    (home / "tests.json").write_text("3, 42")
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as local:
        listener.bind(("127.0.0.1", 0))
        local.bind("\0gw")
        for one in (listener, local):
            one.listen()
            one.setblocking(False)
        yield home, listener, local


def with_targets(code: str, host) -> str:
    home, listener, _ = host
    names = {"PORT": listener.getsockname()[1], "TESTS": str(home / "tests.json"), "MARK": str(home / "mark")}
    return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + code


def state(host) -> list[object]:
    home, _, _ = host
    files = {str(p): p.stat().st_mtime_ns for p in (*home.rglob("*"), Path(os.__file__), Path("/etc/passwd"))}
    return [files, dict(os.environ), sorted(os.listdir("/tmp")), threading.active_count()]


async def outcome(verifier: CodeVerifier, code: str) -> Outcome:
    sample = Sample(context=(), stream=(0,), text=f"```python\n{code}\n```")
    return (await verifier(Prompt("add/1", (), "add", {"answer": GOLD}), sample)).outcome


@pytest.mark.parametrize("name", HACKS)
def test_no_hack_is_rewarded_and_the_host_stays_as_it_was(verifier, host, name, monkeypatch):
    monkeypatch.setenv("CANARY", "secret")
    asyncio.run(outcome(verifier, REFERENCE))
    before, boxes = state(host), servers(verifier.sandbox)
    inside = children(os.getpid())
    assert asyncio.run(outcome(verifier, with_targets(HACKS[name], host))) is Outcome.wrong
    assert asyncio.run(outcome(verifier, REFERENCE)) is Outcome.correct
    after = state(host)
    assert after[:2] == before[:2] and after[3] == before[3] and not (host[0] / "mark").exists()
    assert servers(verifier.sandbox) == boxes, "the sandbox process was replaced"
    assert children(os.getpid()) == inside, "a process was left behind"
    for listener in host[1:]:
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_under_load_the_verdicts_are_the_same(verifier, host):
    """All hacks in parallel, with right answers between them, on a busy machine."""
    codes = [code for hack in HACKS.values() for code in (with_targets(hack, host), REFERENCE)]

    async def all_at_once() -> list[Outcome]:
        return await asyncio.gather(*(outcome(verifier, code) for code in codes))

    busy = threading.Event()
    load = [threading.Thread(target=lambda: [None for _ in iter(busy.is_set, True)], daemon=True) for _ in range(4)]
    for thread in load:
        thread.start()
    try:
        outcomes = asyncio.run(all_at_once())
    finally:
        busy.set()
        for thread in load:
            thread.join()
    assert outcomes == [Outcome.wrong, Outcome.correct] * len(HACKS)
    assert len(servers(verifier.sandbox)) == 2


def test_every_wall_stands_by_itself():
    """Checks each wall from outside in a running answer, so one wall cannot hide that another is missing."""
    needed()
    with closing(Sandbox(ExecutionLimits(wall_seconds=60.0), boxes=1)) as sandbox:
        sandbox.info()
        status, spaces = asyncio.run(inspect_answer(sandbox))
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    assert {int(status[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert "0" not in status["Uid"].split() or os.getuid() != 0, "the answer runs as the host user root"
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in spaces[0]}
    server, answer = spaces
    assert not set(own.items()) & set(server.items())
    assert {name for name in own if server[name] != answer[name]} == {"pid", "mnt", "ipc"}


async def inspect_answer(sandbox: Sandbox) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The kernel status of a sleeping answer, and the namespaces of its server and of the answer."""
    (server,) = servers(sandbox)
    before = {*children(server)}
    running = asyncio.create_task(sandbox.execute(ExecutionInput("import time\nwhile True: time.sleep(1)")))
    while True:
        await asyncio.sleep(0.02)
        found = {*children(server)} - before
        if len(found) == 1:
            (pid,) = found
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if status["Seccomp"] == "2":  # confined, and running
                break
    names = ("pid", "mnt", "ipc", "net", "uts", "user", "cgroup")
    spaces = [{n: os.readlink(f"/proc/{process}/ns/{n}") for n in names} for process in (status["PPid"], pid)]
    os.kill(pid, signal.SIGKILL)
    assert (await running).end_reason == "failed"
    return status, spaces


def test_an_answer_sees_next_to_nothing(verifier):
    look = """
import os
def add(a, b):
    here = [os.listdir("/"), os.listdir("/tmp")]
    return [*here, os.getpid(), os.getppid(), os.getuid(), used(), os.uname().nodename, noted()]
def noted():
    done = []
    for place in ("/", "/usr", "/dev", "/usr/lib", "/tmp"):
        try: done.append(open(place + "/n", "w").name)
        except OSError: pass
    return done
def used():
    return [fd for fd in range(64) if is_open(fd)]
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
"""
    for _ in range(2):
        (execution,) = verifier.sandbox.run([ExecutionInput(look, "add", (1, 2))])
        root, tmp, pid, parent, uid, descriptors, name, noted = execution.return_value
        assert not {"proc", "home", "sys", "var", "boot"} & set(root), root
        assert (tmp, pid, parent, uid, descriptors, name) == ([], 1, 0, 1000, [0, 1, 2, 3], "sandbox")
        assert noted == ["/tmp/n"]
