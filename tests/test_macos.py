"""macOS, simulated: without the names that only Linux has, every module is imported and a run trains."""

import subprocess
import sys
from pathlib import Path

from groupwise.training import run_recorder

SCRIPT = """
import importlib, os, pkgutil, resource, select, signal, socket, sys, sysconfig
import asyncio.subprocess, numpy, safetensors.torch, tokenizers, torch, transformers
LINUX = {
    os: "memfd_create pidfd_open eventfd sched_getaffinity sched_setaffinity posix_fallocate fdatasync splice unshare "
        "setns copy_file_range O_PATH O_TMPFILE O_DIRECT getrandom setresuid setresgid",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL",
    resource: "prlimit RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_OFILE",
    select: "epoll",
    socket: "SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK SO_PASSCRED AF_NETLINK AF_PACKET AF_VSOCK",
}
for module, names in LINUX.items():
    for name in names.split():
        vars(module).pop(name, None)
sysconfig.get_config_vars()  # those of this machine
sys.platform = "darwin"

import groupwise as gw
from groupwise.sandbox import Sandbox
programs = {"groupwise.sandbox.server", "groupwise.sandbox.launch_bubblewrap"}  # started by path, on Linux only
names = {module.name for module in pkgutil.walk_packages(gw.__path__, "groupwise.")} - programs
for name in sorted(names):
    importlib.import_module(name)
print("imported", len(names) > 200)
for unsafe in (False, True):
    try:
        Sandbox(unsafe=unsafe)
    except gw.MissingRequirement as error:
        print(error)
small = {"prompts": 2, "method.group_size": 2, "method.minibatches": 1, "evaluate.problems": 2, "max_tokens": 6}
run = gw.train(out=sys.argv[1], iterations=1, **small)
print("trained", run.done)
"""


def test_every_module_is_imported_and_a_run_trains_without_linux(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    refusal = [
        "code answers run in a sandbox, and there is none on this machine",
        "  seen: this is darwin",
        "  do:   run it on Linux",
    ]
    lines = done.stdout.splitlines()  # between the last two, the results of the run
    assert lines[:7] == ["imported True", *refusal, *refusal] and lines[-1] == "trained 1", done.stderr


def test_the_peak_of_memory_has_the_unit_of_the_system(monkeypatch) -> None:
    usage = run_recorder.resource.getrusage(run_recorder.resource.RUSAGE_SELF)
    monkeypatch.setattr(run_recorder.resource, "getrusage", lambda who: usage)
    kib = usage.ru_maxrss
    monkeypatch.setattr(run_recorder.sys, "platform", "linux")
    assert run_recorder.peak_memory() == kib / 1024
    monkeypatch.setattr(run_recorder.sys, "platform", "darwin")
    assert run_recorder.peak_memory() == kib / 1024 / 1024
