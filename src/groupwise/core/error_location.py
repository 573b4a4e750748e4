"""Describes an exception that a user's code raised, with its file and line."""

import sys
import sysconfig
from pathlib import Path
from types import TracebackType

__all__ = ["describe_error"]

OURS = str(Path(__file__).parent.parent)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def describe_error(error: BaseException) -> str:
    """The type and message of an exception, preceded by its innermost line in a user's file: `v.py:9 in grade: `.

    Of an exception group, such as a TaskGroup raises, its first exception. The location is left out if the traceback
    has no such line. At most 500 characters.

    >>> describe_error(KeyError("boom"))
    "KeyError: 'boom'"
    >>> describe_error(ExceptionGroup("unhandled errors in a TaskGroup", [KeyError("boom"), ValueError("bang")]))
    "KeyError: 'boom'"
    """
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    location = _location(first.__traceback__) or _location(error.__traceback__)
    return f"{location}{type(first).__name__}: {first}"[:500]


def _location(trace: TracebackType | None) -> str:
    """Where an exception was raised, as `v.py:9 in raises: `: the innermost frame outside installed packages; or ""."""
    location = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((OURS, *INSTALLED, "<frozen", sys.base_prefix)):
            location = f"{Path(code.co_filename).name}:{trace.tb_lineno} in {code.co_name}: "
        trace = trace.tb_next
    return location
