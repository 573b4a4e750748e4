"""The door of the library: within its calls, errors and notices are in Python's words, not in the command line's."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from groupwise.api.notebook import cell_output
from groupwise.config.python_advice import in_python, translate
from groupwise.core import GroupwiseError, spelling

__all__ = ["from_python"]

P = ParamSpec("P")
T = TypeVar("T")


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
