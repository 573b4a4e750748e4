"""Phases: one recipe for several runs in order. Each `[[phase]]` table overrides the recipe above it.

`@NAME` in a path is the run directory of an earlier phase.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.config.phase_references import REFERENCE, Locate, with_paths
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_tables
from groupwise.config.toml import base_of
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.runs.phase_directories import KEY, NAME

STARTING_POINT = ("model", "lora", "warm_start")
"""The fields that set a run's initial weights. Written above the phases, they apply to the first phase only."""


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """One phase of a recipe: `common_recipe` is the recipe outside the phases, `changes` the phase's table."""

    index: int
    name: str
    common_recipe: Mapping[str, Any]
    changes: Mapping[str, Any]
    earlier_phases: tuple[str, ...]
    """The names of the phases before this one."""

    @property
    def base(self) -> str:
        """The name of the method, published or the user's, that the phase's method starts from; or an empty string."""
        return base_of(self.changes) or base_of(self.common_recipe)

    @property
    def starts_from(self) -> str:
        """The name of the earlier phase whose model this phase starts from, or an empty string."""
        reference = str(self.changes.get("model", self.common_recipe.get("model", "")))
        return reference[1:].removesuffix("/model") if REFERENCE.match(reference) else ""

    def recipe(self, locate: Locate, use: UserCode | None) -> tuple[Recipe | None, list[Usage]]:
        """The recipe of the phase (None if it is invalid), and all its problems.

        `locate` returns the path for a reference: of `@search/model`, it receives `search` and `model`.
        """
        where = f"{KEY}.{self.name}"
        try:
            changes, common = (
                with_paths(data, where, self.earlier_phases, locate) for data in (self.changes, self.common_recipe)
            )
        except Usage as error:
            return None, [error]
        return read_tables([("recipe", common), (where, changes)], use)


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
            index=i + 1,
            name=name,
            common_recipe={**later, "model": f"@{names[i - 1]}/model"} if i else common,
            changes={key: value for key, value in table.items() if key != "name"},
            earlier_phases=names[:i],
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
