"""Exceptions that end a program, such as that of `sys.exit()`, raised by a user's code."""

import signal
from functools import partial
from typing import Any

__all__ = ["as_error"]


def as_error(error: BaseException) -> BaseException:
    """A RuntimeError with the traceback of an exception that would end the program.

    The exception itself if a signal's handler raised it, in whatever code ran just then: the program is interrupted.

    >>> as_error(SystemExit(3))
    RuntimeError('SystemExit: 3')
    """
    if is_from_signal(error):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": ")).with_traceback(error.__traceback__)


def is_from_signal(error: BaseException) -> bool:
    """Whether the traceback of an exception has the frame of a signal's handler."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [handler.func if isinstance(handler, partial) else handler for handler in handlers]
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
