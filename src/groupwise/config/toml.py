"""Raw data: TOML as dictionaries, and dotted paths that write into them before they are understood."""

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

from groupwise.config.registry import methods
from groupwise.data import Usage


class Typed(str):
    """A value typed on a command line: what it means depends on the field it is for."""

    __slots__ = ()

    @property
    def plain(self) -> Any:
        """The value as TOML reads it; as a string where TOML cannot."""
        try:
            read = tomllib.loads(f"x = {self}")
        except tomllib.TOMLDecodeError:
            return str(self)
        return read["x"] if len(read) == 1 else str(self)


def raw(source: str | Path) -> dict[str, Any]:
    """TOML as dictionaries."""
    is_text = isinstance(source, str) and ("\n" in source or "=" in source or not source)
    where = "recipe" if is_text else str(source)
    try:
        return tomllib.loads(str(source) if is_text else Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise Usage(f"{where} cannot be read", evidence=error.strerror or str(error), fix="name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"{where} is not TOML", evidence=str(error), fix="mend that line") from error
    except RecursionError:
        raise Usage(
            f"{where} is nested too deeply", fix="look at its brackets: no field of a recipe needs so many"
        ) from None


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Write a value into what was read, before it is understood: one building sees all overrides together."""
    keys = keys_of(path)
    here: Any = data
    for key, following in pairwise(keys):
        place = _place(here, key, path)
        inner = here[place] if isinstance(here, list) else here.get(place, {})
        inner = inner.plain if isinstance(inner, Typed) else inner
        if isinstance(inner, str):
            inner = {"base" if inner in methods() else "kind": inner}
        if not isinstance(inner, dict | list) or following == "kind":  # another part has other constants
            inner = {}
        here[place] = inner
        here = inner
    here[_place(here, keys[-1], path)] = value


def keys_of(path: str) -> list[str]:
    """The keys of a dotted path; one with dots inside stands in quotation marks, as in TOML."""
    try:
        inner: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        raise Usage(f"{path!r} is no path to a field", fix="write it as in method.objective.surrogate.high") from None
    keys = []
    while isinstance(inner, dict) and len(inner) == 1:
        ((key, inner),) = inner.items()
        keys.append(key)
    return keys


def _place(here: Any, key: str, path: str) -> Any:
    """Where a key leads: in a list to an element that is there."""
    if not isinstance(here, list):
        return key
    if not key.isdecimal() or int(key) >= len(here):
        fix = f"its elements are 0 to {len(here) - 1}, or give a whole list"
        raise Usage(f"{path}: there is no element {key!r}", fix=fix)
    return int(key)
