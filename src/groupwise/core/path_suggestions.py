"""Suggests similar paths for a path that does not exist."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

__all__ = ["looks_like_path", "near_paths", "or_near"]


def looks_like_path(name: str) -> bool:
    """Whether a name is probably meant as a path: it contains a path separator or has a file extension.

    >>> looks_like_path("mine.jsnl"), looks_like_path("data/mine"), looks_like_path("calculater")
    (True, True, False)
    """
    path = Path(name)
    return "/" in name or os.sep in name or path.suffix[1:2].isalpha()


def near_paths(path: str | Path) -> str:
    """A suggestion for a path that does not exist, or is of another kind: `did you mean X?`; empty if none is similar.

    If its folder does not exist either, the suggestion is for the folder.
    """
    path = Path(path)
    if path.name and path != path.parent and not os.path.isdir(path.parent):
        return near_paths(path.parent)
    try:
        names: Iterable[str] = sorted(name for name in os.listdir(path.parent) if name != path.name)
    except OSError:
        return ""
    matches = [str(path.parent / name) for name in get_close_matches(path.name, names, n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(matches)}?" if matches else ""


def or_near(path: str | Path, fix: str) -> str:
    """The suggestion of `near_paths`, if any, followed by another fix."""
    return "\n".join(filter(None, (near_paths(path), fix)))
