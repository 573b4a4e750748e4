"""Reads TOML as dictionaries, and sets values in them by dotted path, before their types are known."""

import errno
import tomllib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from groupwise.config.registry import methods
from groupwise.core import Usage, is_nested_deeper, or_near
from groupwise.methods.families import published_name


class CommandLineValue(str):
    """A value from the command line. Its type depends on the field that it sets."""

    __slots__ = ()

    @property
    def plain(self) -> Any:
        """The text parsed as a TOML value, or the text itself if it is not valid TOML."""
        try:
            table = tomllib.loads(f"x = {self}")
        except tomllib.TOMLDecodeError:
            return str(self)
        return table["x"] if len(table) == 1 else str(self)


class PythonText(str):
    """A value from Python that is text. It is never parsed."""

    __slots__ = ()


DEFAULT = Path(__file__).with_name("default.toml")
"""The packaged recipe `calculator`: the recipe of a command that names no recipe, no model and no task."""
LARGEST, DEEPEST = 8 << 20, 64
"""The most bytes of a recipe's file, and the most levels of its tables and lists."""
TWICE = 'write it once: method = "grpo" alone, or with fields method.base = "grpo" and method.group_size = 8'
"""The advice for TOML that gives a name both a value and fields."""
BARE = "\0value"
"""The key of a value that is no table, in the table of the fields that are set beside it. No name begins with NUL."""


def override_value(value: Any) -> Any:
    """Convert an override's value: a string is text of the command line, unless it is a `PythonText`."""
    if isinstance(value, PythonText):
        return str(value)
    return CommandLineValue(value) if isinstance(value, str) else value


def is_toml(source: str | Path) -> bool:
    """Whether a recipe is given as TOML text, not as a file's name: an empty string, or one with a newline or `=`."""
    return isinstance(source, str) and ("\n" in source or "=" in source or not source)


def default_method() -> str:
    """The name of the packaged recipe's method, which a recipe without a method has."""
    return read_toml(DEFAULT)["method"]["base"]


def read_toml(source: str | Path) -> dict[str, Any]:
    """Parse a TOML file, or TOML text (a string with a newline or `=`), to a dict. Raises `Usage`."""
    if is_toml(source):
        return parse_toml(str(source), "recipe")
    where = str(source)
    try:
        return parse_toml(_text_of(Path(source)), where)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        fix = or_near(where, "name a TOML file") if missing else "name a TOML file"
        raise Usage(f"{where} cannot be read", evidence=error.strerror or str(error), fix=fix) from error
    except UnicodeDecodeError as error:
        raise Usage(f"{where} is not TOML", evidence=str(error), fix="correct the syntax in that line") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text to a dict. Raises `Usage`, whose message names it as `where`."""
    deep = Usage(f"{where} is nested too deeply", fix="remove brackets or dots: no field of a recipe is this deep")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = TWICE if "overwrite a value" in str(error) else "correct the syntax in that line"
        raise Usage(f"{where} is not TOML", evidence=str(error), fix=fix) from error
    except RecursionError:
        raise deep from None
    if is_nested_deeper(data, DEEPEST):
        raise deep
    return data


def _text_of(path: Path) -> str:
    """The text of a file, which may be a pipe that a shell has made. OSError beyond `LARGEST` bytes."""
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST:,} bytes")
    return content.decode("utf-8-sig")


def read_with_overrides(source: str | Path, overrides: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Parse a recipe's TOML, and apply the overrides of the command line. Raises `Usage`."""
    return overridden(read_toml(source), overrides)


LENGTHS = {"epochs", "iterations"}
"""The fields of a recipe that say how long a run is."""


def overridden(data: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The data of a recipe, in which the overrides of the command line are set. Raises `Usage`.

    `epochs` and `iterations` both say how long a run is: an override with one takes the place of the other in the data.

    >>> overridden({"epochs": 2}, [("iterations", 7)]), overridden({"iterations": 7}, [("epochs", 2)])
    ({'iterations': 7}, {'epochs': 2})
    """
    lengths = {path for path, _ in overrides} & LENGTHS
    if len(lengths) > 1:
        problem = "epochs and iterations both say how long the run is"
        raise Usage(problem, fix="leave one of them out")
    data = {key: value for key, value in data.items() if not (lengths and key in LENGTHS)}
    for path, value in overrides:
        if path in ("method.base", "method.kind"):
            raise Usage(
                f"--{path} would change the method, but would keep constants of the recipe's method",
                fix=f"write --method {value}",
            )
    set_paths(data, [(path, override_value(value)) for path, value in overrides])
    return data


def without_command_text(value: Any) -> Any:
    """A copy of TOML data in which text of the command line is parsed as TOML."""
    if isinstance(value, CommandLineValue):
        return value.plain
    if isinstance(value, dict):
        return {key: without_command_text(item) for key, item in value.items()}
    return [without_command_text(item) for item in value] if isinstance(value, list) else value


def set_paths(data: dict[str, Any], fields: Sequence[tuple[str, Any]]) -> None:
    """Set values at dotted paths, in place. In any order, a component is replaced before its constants are set.

    A number or `none` beside fields of it stays as `BARE`: it is an error when types are checked.

    >>> data = {}
    >>> set_paths(data, [("method.group_size", 8), ("method", "grpo"), ("lora", "none"), ("lora.rank", 8)])
    >>> data["method"], data["lora"] == {BARE: "none", "rank": 8}
    ({'base': 'grpo', 'group_size': 8}, True)
    """
    for path, value in sorted(fields, key=lambda field: field[0].removesuffix(".kind").count(".")):
        plain = value.plain if isinstance(value, CommandLineValue) else value
        has_fields = any(other.startswith(f"{path}.") for other, _ in fields)
        set_path(data, path, {BARE: value} if has_fields and (plain == "none" or is_bare(plain)) else value)


def is_bare(value: Any) -> bool:
    """Whether a value can have no fields: a number, a boolean, or Python's None."""
    return value is None or isinstance(value, int | float)


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, in place. Types are checked later, so that all overrides are read together.

    A number in place of a table stays as `BARE`; `none` in a recipe's file is replaced by the table.

    >>> data = {"optimizer": 1e-5, "lora": "none"}
    >>> set_path(data, "optimizer.lr", 1e-6)
    >>> set_path(data, "lora.rank", 8)
    >>> data == {"optimizer": {BARE: 1e-5, "lr": 1e-6}, "lora": {"rank": 8}}
    True
    """
    keys = keys_of(path)
    node: Any = data
    for key, following in pairwise(keys):
        index = _index(node, key, path)
        child = node[index] if isinstance(node, list) else node.get(index, {})
        child = child.plain if isinstance(child, CommandLineValue) else child
        if isinstance(child, str) and child != "none":  # a field that may be none has no component yet
            child = {"base" if published_name(child) in methods() else "kind": child}
        if is_bare(child):
            child = {BARE: child}
        if child == "none" or (following == "kind" and BARE not in child):  # another component has other constants
            child = {}
        node[index] = child
        node = child
    node[_index(node, keys[-1], path)] = value


def base_of(data: Mapping[str, Any]) -> str:
    """The name of the method, published or the user's, that a recipe's tables start from; empty if they name none.

    >>> base_of({"method": "DAPO"}), base_of({"method": {"group_size": 4}})
    ('dapo', '')
    """
    method = data.get("method", "")
    return published_name(str(method.get("base", "")) if isinstance(method, dict) else str(method))


def keys_of(path: str) -> list[str]:
    """The keys of a dotted path. A key that contains dots is quoted, as in TOML."""
    try:
        inner: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        raise Usage(f"{path!r} is not a dotted path", fix="write it like method.objective.surrogate.high") from None
    if is_nested_deeper(inner, DEEPEST):
        raise Usage(f"{path[:40]!r}... has more than {DEEPEST} keys", fix="no field of a recipe is this deep")
    keys = []
    while isinstance(inner, dict) and len(inner) == 1:
        ((key, inner),) = inner.items()
        keys.append(key)
    return keys


def _index(node: Any, key: str, path: str) -> Any:
    """The key of a table, or the index of an existing list element."""
    if not isinstance(node, list):
        return key
    if not key.isdecimal() or int(key) >= len(node):
        fix = f"its elements are 0 to {len(node) - 1}, or give a whole list"
        raise Usage(f"{path}: no element {key!r}", fix=fix)
    return int(key)
