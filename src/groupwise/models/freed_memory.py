"""Returns freed memory to the operating system. Only the allocator of glibc needs it."""

import ctypes

KEPT = 64 * 2**20
"""Bytes of freed memory that stay with the process: less is not worth the page faults of getting it back."""


class AllocatorUsage(ctypes.Structure):
    """The struct `mallinfo2` of glibc; `fordblks` are the bytes of free blocks."""

    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                 "keepcost")]  # fmt: skip


def find_glibc() -> ctypes.CDLL | None:
    """The C library of the process if it is glibc 2.33 or newer; else None (macOS, musl, Windows)."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = AllocatorUsage
        return library if library.malloc_trim else None
    except (AttributeError, OSError, TypeError):
        return None


GLIBC = find_glibc()


def return_freed_memory() -> None:
    """Return all free pages to the operating system, if they are more than `KEPT`.

    glibc keeps the memory that a phase freed, and the next phase often needs blocks of other sizes: the peak would be
    up to a third higher. Results do not depend on it.
    """
    if GLIBC is not None and GLIBC.mallinfo2().fordblks > KEPT:
        GLIBC.malloc_trim(0)
