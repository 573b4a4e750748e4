"""Returns freed memory to the operating system. Only the allocator of glibc needs it."""

import ctypes
from collections.abc import Callable


def glibc_trim() -> Callable[[int], int] | None:
    """The function `malloc_trim` of the process's C library; None for libraries without it (macOS, musl, Windows)."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


TRIM = glibc_trim()


def return_freed_memory() -> None:
    """Return all free pages to the operating system.

    glibc keeps the memory that a phase freed, and the next phase often needs blocks of other sizes: the peak would be
    up to a third higher. A call takes milliseconds. Results do not depend on it.
    """
    if TRIM is not None:
        TRIM(0)
