"""The user's cache directory."""

import os
from pathlib import Path

from groupwise.core.errors import Storage

__all__ = ["user_cache"]


def user_cache(name: str) -> Path:
    """The directory `groupwise/<name>` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`), created if needed.

    Only the user can read it. `Storage` if it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        directory = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "groupwise" / name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        what = f"the cache directory groupwise/{name} cannot be made"
        fix = "set XDG_CACHE_HOME to the absolute path of a directory that you can write to"
        raise Storage(what, evidence=str(error), fix=fix) from error
    return directory
