"""Lines that are printed once: the notes of a sweep's runs are mostly equal."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["each_line_once", "is_new_line"]

_PRINTED: ContextVar[set[str] | None] = ContextVar("printed", default=None)


@contextmanager
def each_line_once() -> Iterator[None]:
    """A context in which `is_new_line` is True at the first time of each line only."""
    token = _PRINTED.set(set())
    try:
        yield
    finally:
        _PRINTED.reset(token)


def is_new_line(line: str) -> bool:
    """Whether to print a line: outside of `each_line_once` always.

    >>> with each_line_once():
    ...     [is_new_line("machine: cpu") for _ in range(2)], is_new_line("plan: ...")
    ([True, False], True)
    """
    if (printed := _PRINTED.get()) is None:
        return True
    new = line not in printed
    printed.add(line)
    return new
