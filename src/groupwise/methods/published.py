"""Every published method, found by its file."""

from collections.abc import Callable
from importlib import import_module

from groupwise.data.rooms import names_of
from groupwise.methods.method import Method
from groupwise.methods.reference import reference_of

__all__ = ["published"]


def _published() -> tuple[Callable[..., Method], ...]:
    """The functions that are called like their file and stand beside a reference, in the order of their papers."""
    room = __name__.rpartition(".")[0]
    files = {name: module for name, module in names_of(room).items() if module == f"{room}.{name}" != __name__}
    methods = (getattr(import_module(module), name) for name, module in files.items())
    return tuple(sorted(methods, key=lambda method: (reference_of(method).arxiv, method.__name__)))


published = _published()
"""Every published method, in the order in which they are shown: that of their papers."""
