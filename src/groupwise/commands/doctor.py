"""What this machine can do, and for each thing that it lacks, the command that brings it."""

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch

from groupwise.data import GroupwiseError, visible
from groupwise.sandbox import sandbox_trial

GIB = 1 << 30
NEEDED = 2 * GIB
"""Bytes of disk and of memory below which a run may not end well."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is a command or advice where `ok` is False."""

    name: str
    ok: bool
    seen: str
    fix: str = ""


def examine(where: Path = Path(".")) -> list[Finding]:
    """Everything, in the order it is told; `where` is on the disk that runs go to. Nothing is changed."""
    return [
        Finding("python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("groupwise", True, f"{version('groupwise')}, torch {torch.__version__}"),
        threads(),
        memory(),
        disk(where),
        gpu(),
        sandbox(),
        *extras(requires("groupwise") or []),
    ]


def threads() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seen = f"{cores} of {os.cpu_count()} cores; a run takes machine.threads of them (default 1)"
    return Finding("threads", True, seen)


def memory(told: Path = Path("/proc/meminfo")) -> Finding:
    """Total and free, as the kernel tells; elsewhere unknown, which is no fault."""
    try:
        kib = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in told.read_text().splitlines())}
        total, free = kib["MemTotal"] << 10, kib["MemAvailable"] << 10
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("memory", True, "unknown on this system")
    return Finding("memory", free >= NEEDED, f"{free / GIB:.1f} of {total / GIB:.1f} GiB free", "end other programs")


def disk(where: Path) -> Finding:
    free = shutil.disk_usage(where).free
    fix = "make room, or keep runs elsewhere: groupwise train --out DIR"
    return Finding("disk", free >= NEEDED, f"{free / GIB:.1f} GiB free in {where.resolve()}", fix)


def gpu() -> Finding:
    """A CUDA device, or why not. A machine without one lacks nothing."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Finding("gpu", True, ", ".join(f"{p.name} ({p.total_memory / GIB:.0f} GiB)" for p in names))
    if not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return Finding("gpu", True, "none: runs compute on the CPU")
    if torch.version.cuda is None:
        fix = "pip install --force-reinstall torch (the build with CUDA)"
        return Finding("gpu", False, "there is one, and this torch is built for the CPU", fix)
    return Finding("gpu", False, f"there is one, and torch (CUDA {torch.version.cuda}) cannot use it", "run nvidia-smi")


def sandbox() -> Finding:
    """Whether code answers can be judged: a sandbox is started."""
    try:
        found = sandbox_trial()
    except GroupwiseError as error:
        return Finding("sandbox", False, f"{error.what}: {error.evidence}", error.fix)
    calls = "namespaces and a filter of system calls" if found["calls"] else "namespaces, no filter of system calls"
    return Finding("sandbox", True, f"bubblewrap, {calls}, python {found['python']}")


def extras(wanted: list[str]) -> Iterator[Finding]:
    """Each extra of the package: its packages that are here with their versions, and those that are not.

    >>> next(extras(["torch>=2", "no-such-thing>=1; extra == 'x'"]))
    Finding(name='extra x', ok=False, seen='no-such-thing missing', fix="pip install 'groupwise[x]'")
    """
    groups: dict[str, list[str]] = {}
    for line in wanted:
        extra, name = re.search(r"extra\s*==\s*['\"]([\w.-]+)", line), re.match(r"[\w.-]+", line)
        if extra and name:
            groups.setdefault(extra[1], []).append(name[0])
    for extra, names in groups.items():
        found = {name: installed(name) for name in names}
        seen = ", ".join(f"{name} {there or 'missing'}" for name, there in found.items())
        yield Finding(f"extra {extra}", all(found.values()), seen, f"pip install 'groupwise[{extra}]'")


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def as_text(findings: list[Finding]) -> str:
    """A line a finding, and what to do under each that is not as it should be."""
    wide = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{'ok' if finding.ok else '--'}  {finding.name:<{wide}}  {visible(finding.seen)}")
        if not finding.ok:
            lines += [f"{'':>{wide + 6}}do: {line}" for line in finding.fix.splitlines()]
    missing = sum(not finding.ok for finding in findings)
    lines.append(f"{missing} of {len(findings)} are missing something" if missing else "all is here")
    return "\n".join(lines)


def as_json(findings: list[Finding]) -> str:
    told = {f.name: {"ok": f.ok, "seen": f.seen, **({} if f.ok else {"fix": f.fix})} for f in findings}
    return json.dumps(told, indent=2)
