"""The command that starts a sandbox: bubblewrap with what it shows and takes away; and why there may be none."""

import os
import shutil
import sys
from pathlib import Path

from groupwise.data import MissingRequirement
from groupwise.sandbox.view import LIBRARIES, PYTHON, hidden, python, view

SERVER = Path(__file__).with_name("server.py")
LAUNCH = Path(__file__).with_name("launch.py")
"""Programs that are run by path, never imported: inside a sandbox, and before it where the host is root."""
QUIET = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1", "LC_ALL": "C.UTF-8"}
"""The whole environment of a box; an answer finds it empty."""
FLAGS = ("-S", "-P", "-B", "-X", "utf8")


def bare(server: int) -> list[str]:
    """The server without a sandbox."""
    return [python()[0], *FLAGS, f"/proc/self/fd/{server}"]


def wrapped(server: int, packages: tuple[str, ...]) -> list[str]:
    """The server in namespaces of its own: Python, its libraries, the packages, an empty /tmp, and nothing else."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "looked for before"
    shown = view(packages)
    as_root = os.geteuid() == 0
    environment = QUIET | {"LD_LIBRARY_PATH": LIBRARIES}
    # The server alone keeps a capability, and only in its own user namespace: each execution gets namespaces from it.
    arguments = [
        *("--unshare-all", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"),
    ]
    for number, (source, target) in enumerate(shown, 1):
        arguments += ["--ro-bind", f"/tmp/{number}" if as_root else source, target]
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
    sources = [os.path.realpath(bwrap), *(one.source for one in shown)]
    return [python()[0], "-I", "-S", str(LAUNCH), *sources, "--", *arguments]


def missing() -> MissingRequirement | None:
    """What this machine lacks for a sandbox, as far as it can be told without starting one."""
    if sys.platform != "linux":
        return MissingRequirement(_NONE, evidence=f"this is {sys.platform}", fix="run it on Linux")
    if shutil.which("bwrap") is None:
        fix = f"apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora){_UNSAFE}"
        return MissingRequirement(_NONE, evidence="bubblewrap is not installed: no bwrap on PATH", fix=fix)
    return None


def refused(seen: str) -> MissingRequirement:
    """What to do where bubblewrap or Python ended with these words."""
    fix = "correct what bubblewrap or Python reports above"
    if any(word in seen.lower() for word in ("namespace", "permi", "uid map")):
        fix = "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000"
        fix += "\non Ubuntu also: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        fix += "\nin a container: start it with --security-opt seccomp=unconfined"
    return MissingRequirement("the sandbox does not start on this machine", evidence=seen, fix=fix + _UNSAFE)


_NONE = "code answers run in a sandbox, and there is none on this machine"
_UNSAFE = "\nor run what the model writes without one, with your own rights: --unsafe-local-exec"
