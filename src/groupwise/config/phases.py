"""Phases: one recipe for several runs in order. Each `[[phase]]` table overrides the recipe above it.

`@NAME` in a path is the run directory of an earlier phase.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.config.text import base_of, read_tables
from groupwise.config.user_code import Use
from groupwise.data import Usage
from groupwise.runs.phases import KEY, NAME

STARTING_POINT = ("model", "lora", "warm_start")
"""The fields that set a run's initial weights. Written above the phases, they apply to the first phase only."""
TEXTS = ("template", "sampling")
"""Fields whose text is never a path, so that an `@` in it is not a reference."""
REFERENCE = re.compile(r"(?<![^:])@([^:]*)")
"""Pattern of a reference `@NAME` to an earlier phase, at the start of a path or after a task's kind: `gsm8k:@first`."""


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One phase of a recipe: `common` is the recipe outside the phases, `changes` the phase's table."""

    number: int
    name: str
    common: Mapping[str, Any]
    changes: Mapping[str, Any]
    earlier: tuple[str, ...]
    """The names of the phases before this one."""

    @property
    def base(self) -> str:
        """The name of the method, published or the user's, that the phase's method starts from; or an empty string."""
        return base_of(self.changes) or base_of(self.common)

    @property
    def starts_from(self) -> str:
        """The name of the earlier phase whose model this phase starts from, or an empty string."""
        reference = str(self.changes.get("model", self.common.get("model", "")))
        return reference[1:].removesuffix("/model") if REFERENCE.match(reference) else ""

    def recipe(self, locate: Callable[[str, str], str], use: Use | None) -> tuple[Recipe | None, list[Usage]]:
        """The recipe of the phase (None if it is invalid), and all its problems.

        `locate` returns the path for a reference: of `@search/model`, it receives `search` and `model`.
        """
        where = f"{KEY}.{self.name}"
        try:
            changes, common = (self._located(data, where, locate) for data in (self.changes, self.common))
        except Usage as error:
            return None, [error]
        return read_tables([("recipe", common), (where, changes)], use)

    def _located(self, data: Any, where: str, locate: Callable[[str, str], str]) -> Any:
        """Replace each reference to an earlier phase (`@NAME`) in the data by a path. `Usage` for an unknown name."""
        if isinstance(data, str):
            return REFERENCE.sub(partial(self._place, where, locate), data)
        if isinstance(data, Mapping):
            skipped = TEXTS if where.count(".") < 2 else ()
            return {k: x if k in skipped else self._located(x, f"{where}.{k}", locate) for k, x in data.items()}
        return (
            [self._located(x, f"{where}.{i}", locate) for i, x in enumerate(data)] if isinstance(data, list) else data
        )

    def _place(self, where: str, locate: Callable[[str, str], str], reference: re.Match[str]) -> str:
        name, _, path = reference[1].partition("/")
        if name in self.earlier:
            return locate(name, path)
        earlier = f"the earlier phases are {', '.join(self.earlier)}" if self.earlier else "this is the first phase"
        raise Usage(f"{where}: no earlier phase is called {name!r}", evidence=reference[0], fix=earlier)


def read_phases(data: Mapping[str, Any]) -> tuple[Phase, ...]:
    """Read the phases of a recipe, in order; none if it has no `[[phase]]` table. Raises `Usage` for invalid names.

    Each phase starts from the previous phase's model, unless it names another one.
    """
    if KEY not in data:
        return ()
    names = phase_names(data[KEY])
    common = {key: value for key, value in data.items() if key != KEY}
    later = {key: value for key, value in common.items() if key not in STARTING_POINT}
    return tuple(
        Phase(
            number=i + 1,
            name=name,
            common={**later, "model": f"@{names[i - 1]}/model"} if i else common,
            changes={key: value for key, value in table.items() if key != "name"},
            earlier=names[:i],
        )
        for i, (name, table) in enumerate(zip(names, data[KEY], strict=True))
    )


def phase_names(tables: Any) -> tuple[str, ...]:
    """The names of the phases. Raises `Usage` if one is missing, invalid, or used twice."""
    if not (isinstance(tables, list) and tables and all(isinstance(table, Mapping) for table in tables)):
        what = f"the recipe's `{KEY}` is not a list of tables: expected one table per phase"
        raise Usage(what, fix=f'write [[{KEY}]] and name = "..." above each phase')
    names = [str(table.get("name", "")) for table in tables]
    for i, name in enumerate(names):
        if not NAME.fullmatch(name):
            fix = 'use letters, digits, "-" and "_", such as name = "search"'
            raise Usage(f"{KEY}.{i}: {name!r} is not a name for a phase" if name else f"{KEY}.{i} has no name", fix=fix)
        if name in names[:i]:
            raise Usage(f"two phases are called {name!r}", fix="rename one: @NAME refers to one phase")
    return tuple(names)
