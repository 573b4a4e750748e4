"""`list_methods` and `load_method`: the published methods by name, and methods of recipe files."""

from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from groupwise.api.python_messages import from_python
from groupwise.config.parse_toml_values import ValueParser
from groupwise.config.recipe_errors import one_error
from groupwise.config.toml import is_toml, read_toml, set_paths
from groupwise.config.train_keyword_arguments import as_data
from groupwise.config.user_code import Permissions, load_use
from groupwise.methods import Method, published

__all__ = ["list_methods", "load_method"]


def list_methods() -> list[str]:
    """The names of the published methods, sorted by the year and the arXiv number of their papers.

    >>> list_methods()[:2]
    ['reinforce', 'ppo']
    """
    return [method.__name__ for method in published]


@from_python
def load_method(source: str | Path, /, *, use: Sequence[str | Path] = (), **constants: Any) -> Method:
    """A published method by its name, the method of a recipe file, or a method in a user's file.

    `my_file:mine` is the method that a function of a file in `use` returns. `constants` are changes by name or dotted
    path. Raises `Usage` with all problems.

    >>> load_method("gspo", **{"objective.surrogate.high": 0.3}).objective.surrogate.high
    0.3
    """
    is_recipe = is_toml(source) or str(source).endswith(".toml")
    tables = {"method": read_toml(source).get("method", {}) if is_recipe else str(source)}
    set_paths(tables, [(f"method.{path}", as_data(value)) for path, value in constants.items()])
    reading = ValueParser(load_use(Permissions(use=use)))
    method = reading.value(tables["method"], Method, MISSING, "method")
    if reading.errors:
        raise one_error(reading.errors)
    return method
