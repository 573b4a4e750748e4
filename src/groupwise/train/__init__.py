"""One run: the recipe, its text, the loop, where it computes, what it leaves, and the commands."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.rollout import Native
    from groupwise.train.recipe import Columns, Evaluate, Machine, Recipe, Save

__all__ = ["Columns", "Evaluate", "Machine", "Native", "Recipe", "Save"]


def __getattr__(name: str) -> Any:
    """The recipe when it is asked for: it brings torch, which what only reads files does without."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.recipe"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
