"""`groupwise doctor`: checks this machine, and prints a command or advice for each failed check."""

import json
import os
import platform
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch

from groupwise.commands.help_epilog import width
from groupwise.core import GroupwiseError, MissingRequirement, visible
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, PINS, check_environment, installation
from groupwise.models.return_freed_memory import machine_memory
from groupwise.sandbox import sandbox_trial

GIB = 1 << 30
NEEDED = 2 * GIB
"""The least free disk and free memory, in bytes: below it, a check fails."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """The result of one check of this machine. `fix` is the command or advice if `ok` is False.

    Without an `optional` package most runs work: that it is missing is no failure.
    """

    name: str
    ok: bool
    observation: str
    fix: str = ""
    optional: bool = False


def examine(where: Path = Path("."), *, engine_python: str = "") -> list[MachineCheck]:
    """All checks of this machine in the order of the output. `where` is the folder of runs. Nothing is changed.

    `engine_python` is an interpreter of vLLM's environment, which is run.
    """
    return [
        MachineCheck("python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        MachineCheck("groupwise", True, f"{version('groupwise')}, torch {torch.__version__}"),
        threads(),
        memory(),
        disk(where),
        gpu(),
        sandbox(),
        *extras(requires("groupwise") or []),
        vllm(engine_python),
    ]


def threads() -> MachineCheck:
    """The check `threads`: the number of CPU cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return MachineCheck("threads", True, f"{cores} of {os.cpu_count()} cores; a run uses machine.threads (default 1)")


def memory(meminfo: Path = Path("/proc/meminfo")) -> MachineCheck:
    """The check `memory`: total and free memory. If the system does not report it, the check passes."""
    fields = machine_memory(meminfo)
    if not {"MemTotal", "MemAvailable"} <= fields.keys():
        return MachineCheck("memory", True, "unknown on this system")
    total, free = fields["MemTotal"], fields["MemAvailable"]
    return MachineCheck(
        "memory", free >= NEEDED, f"{free / GIB:.1f} of {total / GIB:.1f} GiB free", "close other programs"
    )


def disk(where: Path) -> MachineCheck:
    """The check `disk`: free space on the disk of the folder `where`."""
    free = shutil.disk_usage(where).free
    fix = "free space, or write runs to another disk: groupwise train --out DIR"
    return MachineCheck("disk", free >= NEEDED, f"{free / GIB:.1f} GiB free in {where.resolve()}", fix)


def gpu() -> MachineCheck:
    """The check `gpu`: the CUDA devices, or why there are none. It also passes without a GPU."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return MachineCheck("gpu", True, ", ".join(f"{p.name} ({p.total_memory / GIB:.0f} GiB)" for p in names))
    if not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return MachineCheck("gpu", True, "none: runs use the CPU")
    if torch.version.cuda is None:
        fix = "pip install --force-reinstall torch (the build with CUDA)"
        return MachineCheck("gpu", False, "found, but this torch is built for the CPU", fix)
    return MachineCheck("gpu", False, f"found, but torch (CUDA {torch.version.cuda}) cannot use it", "run nvidia-smi")


def sandbox() -> MachineCheck:
    """The check `sandbox`: whether model-written code can run here. It starts a sandbox."""
    try:
        trial = sandbox_trial()
    except GroupwiseError as error:
        return MachineCheck("sandbox", False, f"{error.what}: {error.evidence}", error.fix)
    calls = "namespaces and a system-call filter" if trial["calls"] else "namespaces, no system-call filter"
    return MachineCheck("sandbox", True, f"bubblewrap, {calls}, python {trial['python']}")


def extras(requirements: list[str]) -> Iterator[MachineCheck]:
    """A check for each optional extra of this package (`pip install groupwise[...]`): installed and missing packages.

    >>> check = next(extras(["torch>=2", "no-such-thing>=1; extra == 'x'"]))
    >>> check.name, check.ok, check.observation, check.fix
    ('extra x', False, 'no-such-thing missing', "pip install 'groupwise[x]'")
    """
    groups: dict[str, list[str]] = {}
    for line in requirements:
        extra, name = re.search(r"extra\s*==\s*['\"]([\w.-]+)", line), re.match(r"[\w.-]+", line)
        if extra and name:
            groups.setdefault(extra[1], []).append(name[0])
    for extra, names in groups.items():
        versions = {name: installed(name) for name in names}
        summary = ", ".join(f"{name} {installed_version or 'missing'}" for name, installed_version in versions.items())
        fix = f"pip install 'groupwise[{extra}]'"
        yield MachineCheck(f"extra {extra}", all(versions.values()), summary, fix, optional=True)


def vllm(python: str = "") -> MachineCheck:
    """The check `vllm`: whether an interpreter, which is run, has the separate environment of vLLM as it was tested.

    Without one, it only looks whether there is one in this directory: a foreign directory may have any program there.
    """
    if not python:
        there = os.path.isfile(DEFAULT_PYTHON)
        seen = f"{DEFAULT_PYTHON}, not run: its versions are checked by --engine-python {DEFAULT_PYTHON}"
        return MachineCheck("vllm", there, seen if there else f"no {DEFAULT_PYTHON}", installation(), optional=True)
    try:
        check_environment(python)
    except MissingRequirement as error:
        return MachineCheck("vllm", False, f"{error.what}: {error.evidence}".replace("\n", "; "), error.fix)
    return MachineCheck("vllm", True, f"{python}: {', '.join(f'{name} {version}' for name, version in PINS.items())}")


def installed(name: str) -> str:
    """The version of an installed package; empty if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def as_text(findings: list[MachineCheck]) -> str:
    """The checks as text: a line each, with the fix below one that failed; then what is optional."""
    required, optional = ([f for f in findings if f.optional is kind] for kind in (False, True))
    failed = sum(not finding.ok for finding in required)
    missing = sum(not finding.ok for finding in optional)
    lines = [line for finding in required for line in lines_of(finding, "ok", "FAILED")]
    lines.append(f"{failed} of {len(required)} checks failed" if failed else f"all {len(required)} checks passed")
    lines += ["", "optional:", *(line for finding in optional for line in lines_of(finding, "yes", "no"))]
    return "\n".join([*lines, f"{missing} of {len(optional)} are not installed" if missing else "all are installed"])


def lines_of(finding: MachineCheck, passed: str, failed: str) -> list[str]:
    """A check as lines: its result, its name, its evidence, and the fix if it failed."""
    fixes = [] if finding.ok else [f"do: {line}" for line in finding.fix.splitlines()]
    indent = " " * 30
    seen = textwrap.wrap(visible(finding.observation), width() - len(indent)) or [""]
    first = f"{passed if finding.ok else failed:<8}{finding.name:<22}{seen[0]}"
    return [first, *(indent + line for line in (*seen[1:], *fixes))]


def as_json(findings: list[MachineCheck]) -> str:
    """The checks as a JSON object by name."""
    objects = {
        f.name: {"ok": f.ok, "optional": f.optional, "seen": f.observation, **({} if f.ok else {"fix": f.fix})}
        for f in findings
    }
    return json.dumps(objects, indent=2)
