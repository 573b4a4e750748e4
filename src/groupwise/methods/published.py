"""`published`: the list of published methods, found by their files."""

from collections.abc import Callable
from importlib import import_module

from groupwise.data.rooms import names_of
from groupwise.methods.method import Method
from groupwise.methods.reference import reference_of

__all__ = ["published"]


def _published() -> tuple[Callable[..., Method], ...]:
    """The functions named like their file, ordered by the arXiv number of their reference."""
    room = __name__.rpartition(".")[0]
    files = {name: module for name, module in names_of(room).items() if module == f"{room}.{name}" != __name__}
    methods = (getattr(import_module(module), name) for name, module in files.items())
    return tuple(sorted(methods, key=lambda method: (reference_of(method).arxiv, method.__name__)))


published = _published()
"""Every published method, in display order (by arXiv number)."""
