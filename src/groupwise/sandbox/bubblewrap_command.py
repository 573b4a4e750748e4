"""The command line of a sandbox process (bubblewrap and its arguments), and the errors when none can start."""

import os
import platform
import shutil
import sys
from pathlib import Path

from groupwise.core import MissingRequirement
from groupwise.sandbox.mounted_files import LIBRARIES, PYTHON, hidden, mounts, python

SERVER = Path(__file__).with_name("server.py")
LAUNCH = Path(__file__).with_name("launch_bubblewrap.py")
"""Programs that are run by path, never imported: the sandbox's server, and its launcher if the host user is root."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1", "LC_ALL": "C.UTF-8"}
"""Environment variables of a sandbox process, besides `LD_LIBRARY_PATH`. Model-written code in it gets none."""
FLAGS = ("-S", "-P", "-B", "-X", "utf8")


def unsafe_command(server: int) -> list[str]:
    """The command that starts the server without bubblewrap, unsafely. `server`: the file descriptor of its source."""
    return [python()[0], *FLAGS, f"/proc/self/fd/{server}"]


def sandbox_command(server: int, packages: tuple[str, ...]) -> list[str]:
    """The command that starts the server inside bubblewrap, with Python, its libraries, packages, and an empty /tmp."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "missing_requirement() is checked first"
    visible = mounts(packages)
    as_root = os.geteuid() == 0
    environment = ENVIRONMENT | {"LD_LIBRARY_PATH": LIBRARIES}
    # Only the server keeps a capability, within its own user namespace: it creates the namespaces of each execution.
    arguments = [
        *("--unshare-all", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"),
    ]
    for index, (source, target) in enumerate(visible, 1):
        arguments += ["--ro-bind", f"/tmp/{index}" if as_root else source, target]
    for path in hidden():
        arguments += ["--tmpfs", path, "--remount-ro", path]
    for path in ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"):
        arguments += ["--dev-bind", path, path]
    arguments += [
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
        "--ro-bind-data",
        str(server),
        "/server.py",
        "--remount-ro",
        "/",
    ]
    arguments += [PYTHON, *FLAGS, "/server.py", "isolated"]
    if not as_root:
        return [bwrap, *arguments]
    sources = [os.path.realpath(bwrap), *(mount.source for mount in visible)]
    return [python()[0], "-I", "-S", str(LAUNCH), *sources, "--", *arguments]


def seccomp_filter() -> bytes:
    """The system-call filter for this processor, made by tools/seccomp_filter.py; empty if there is none."""
    path = Path(__file__).with_name(f"seccomp_{platform.machine()}.bpf")
    return path.read_bytes() if path.is_file() else b""


def missing_requirement(*, unsafe: bool = False) -> MissingRequirement | None:
    """The error for a machine without Linux or without bubblewrap; None if it has both. Starts no sandbox.

    `unsafe` execution needs no bubblewrap; it needs Linux, too.
    """
    if sys.platform != "linux":
        return MissingRequirement(_NONE, evidence=f"this is {sys.platform}", fix="run it on Linux")
    if not unsafe and shutil.which("bwrap") is None:
        fix = f"apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora){_UNSAFE}"
        return MissingRequirement(_NONE, evidence="bubblewrap is not installed: no bwrap on PATH", fix=fix)
    return None


def start_error(output: str) -> MissingRequirement:
    """The error for a sandbox that did not start, from the output of bubblewrap or Python."""
    fix = "correct the error of bubblewrap or Python above"
    if any(word in output.lower() for word in ("namespace", "permi", "uid map")):
        fix = "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
        fix += "\non Ubuntu also: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        fix += "\nin a container: start it with --security-opt seccomp=unconfined"
    return MissingRequirement("the sandbox does not start on this machine", evidence=output, fix=fix + _UNSAFE)


_NONE = "code answers run in a sandbox, and there is none on this machine"
_UNSAFE = "\nor run the model's code without a sandbox, with your own rights: --unsafe-local-exec"
