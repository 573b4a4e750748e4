"""`published`: the list of published methods, found by their files."""

from collections.abc import Callable
from importlib import import_module

from groupwise.methods.families import method_files
from groupwise.methods.method import Method
from groupwise.methods.reference import reference_of

__all__ = ["published"]


def _published() -> tuple[Callable[..., Method], ...]:
    """The functions named like their file, ordered by year and by the arXiv number of their reference."""
    methods = (getattr(import_module(module), name) for name, module in method_files().items())

    def order(method: Callable[..., Method]) -> tuple[int, str, str]:
        return reference_of(method).year, reference_of(method).arxiv, method.__name__

    return tuple(sorted(methods, key=order))


published = _published()
"""Every published method, in display order: by year, then by arXiv number."""
