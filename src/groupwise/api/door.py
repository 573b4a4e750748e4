"""The door of the library: within its calls, errors and notices are in Python's words, not in the command line's."""

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from groupwise.api.notebook import cell_output
from groupwise.config.python_spelling import in_python
from groupwise.core import GroupwiseError, spelling

__all__ = ["from_python"]

P = ParamSpec("P")
T = TypeVar("T")
SEVERAL = re.compile(r"\d+ errors")
"""The first line of an error whose evidence is the text of others. Any other evidence is data, and stays as it is."""
ADVICE = re.compile(r"(?<=: )(?:say )?--(?:warm_start\.)?columns\..*$", re.MULTILINE)
"""The advice for a data row, which is in the evidence behind the row's fault."""


def from_python(call: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: its `GroupwiseError`s and notices advise in Python.

    >>> @from_python
    ... def load(name):
    ...     raise GroupwiseError("no template", fix="use --template chat")
    >>> load("x")
    Traceback (most recent call last):
    groupwise.core.errors.GroupwiseError: no template
      do:   use template="chat"
    """

    @wraps(call)
    def translated(*args: P.args, **options: P.kwargs) -> T:
        try:
            with spelling(in_python), cell_output():
                return call(*args, **options)
        except GroupwiseError as error:
            translate(error)
            raise

    return translated


def translate(error: GroupwiseError) -> None:
    """Render what an error says, in place. Once more changes nothing."""
    error.what, error.fix = in_python(error.what), in_python(error.fix)
    if SEVERAL.fullmatch(error.what):
        error.evidence = in_python(error.evidence)
    error.evidence = ADVICE.sub(lambda match: in_python(match[0]), error.evidence)
    error.args = (error.what,)
