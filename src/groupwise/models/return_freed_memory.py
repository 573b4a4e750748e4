"""Returns freed memory to the operating system where memory is short. Only the allocator of glibc needs it."""

import ctypes
from pathlib import Path

KEPT = 64 * 2**20
"""Bytes of freed memory that stay with the process: less is not worth the page faults of getting it back."""


class GlibcMallocUsage(ctypes.Structure):
    """The struct `mallinfo2` of glibc; `fordblks` are the bytes of free blocks."""

    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                 "keepcost")]  # fmt: skip


def find_glibc() -> ctypes.CDLL | None:
    """The C library of the process if it is glibc 2.33 or newer; else None (macOS, musl, Windows)."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = GlibcMallocUsage
        return library if library.malloc_trim else None
    except (AttributeError, OSError, TypeError):
        return None


GLIBC = find_glibc()


def return_freed_memory(*, always: bool = False) -> None:
    """Return all free pages to the operating system if memory is short, or `always`, and they are more than `KEPT`.

    glibc keeps the memory that a phase freed, and the next phase often needs blocks of other sizes: the peak is then up
    to a third higher. Where memory suffices, that costs less time than to get the pages back: the kernel clears each of
    them again. Results do not depend on it.
    """
    if GLIBC is None or GLIBC.mallinfo2().fordblks <= KEPT:
        return
    if always or available_memory() < peak_memory():
        GLIBC.malloc_trim(0)


def peak_memory() -> int:
    """The most bytes that were resident in this process. A later phase may need as much in blocks of other sizes."""
    import resource  # absent on Windows, where nothing calls this

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def machine_memory(meminfo: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """The fields of /proc/meminfo, in bytes, such as `MemTotal` and `MemAvailable`; none if it cannot be read."""
    try:
        rows = (line.split(":") for line in meminfo.read_text().splitlines())
        return {name: int(size.split()[0]) << 10 for name, size in rows}
    except (OSError, ValueError, IndexError):
        return {}


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that a process can get without swapping: of the machine, or of its control group if that has less.

    0 where the system does not report it.
    """
    machine = machine_memory(meminfo).get("MemAvailable", 0)
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return machine
    return min(machine, limit - used + int(statistics["inactive_file"]))
