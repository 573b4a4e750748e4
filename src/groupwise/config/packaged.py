"""The packaged recipes, by name: `groupwise train --recipe smollm2`."""

from difflib import get_close_matches
from pathlib import Path

from groupwise.config.registry import methods
from groupwise.config.toml import DEFAULT
from groupwise.core import Usage
from groupwise.runs.find_run import newest_run
from groupwise.runs.run_layout import RunLayout
from groupwise.tasks.published_sets import PRESETS
from groupwise.tasks.read_rows import is_source

__all__ = ["find_recipe", "named_recipe"]

PACKAGE = Path(__file__).parents[1]
HOMES = (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes")
"""The folders of packaged recipes: in an installed wheel, and in a clone of the repository."""


def find_recipe(name: str) -> Path:
    """The file of a packaged recipe, given its name; a path is returned as it is. `Usage` for an unknown name.

    >>> find_recipe("smollm2").name, str(find_recipe("mine/fast.toml"))
    ('smollm2.toml', 'mine/fast.toml')
    """
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    recipes = packaged_recipes()
    if name not in recipes:
        near = get_close_matches(name, recipes, n=1)
        fix = f"did you mean {near[0]}?" if near else f"take {', '.join(recipes)}, or name a TOML file"
        raise Usage(f"no packaged recipe is called {name!r}", fix=fix)
    return recipes[name]


def packaged_recipes() -> dict[str, Path]:
    """The files of the packaged recipes, by name."""
    home = next((home for home in HOMES if home.is_dir()), HOMES[0])
    return {"calculator": DEFAULT} | {file.stem: file for file in sorted(home.glob("*.toml"))}


def named_recipe(file: str | None, name: str | None) -> Path | None:
    """The recipe file that a command names, by path or as a packaged recipe; None without one. Raises `Usage`."""
    if file == "":
        raise Usage("the name of the recipe is empty", fix="name a TOML file, or leave the argument out")
    if file and name:
        raise Usage("two recipes are given", evidence=f"{file}, --recipe {name}", fix="leave one out")
    if file and (advice := other_option(file)):
        raise Usage(f"{file} is no recipe", fix=advice)
    if file and file in methods() and not Path(file).exists():
        raise Usage(f"{file} is a method, not a recipe", fix=f"train with it: groupwise train --method {file}")
    if file and file in packaged_recipes() and not Path(file).exists():
        raise Usage(f"{file} is a packaged recipe, not a file", fix=f"name it with an option: --recipe {file}")
    return find_recipe(name) if name else Path(file) if file else None


def other_option(file: str) -> str:
    """The advice for a file, a directory or a name that is meant as data, a reward, a model or a run; else empty."""
    path = Path(file)
    if path.suffix == ".toml":
        return ""
    if path.suffix == ".py" and path.is_file():
        return f"a reward is named with an option: --reward {file}:NAME"
    if RunLayout(run := Path(newest_run(file))).is_run:
        return f"it is a run: groupwise resume {run}\nor, for a new run: groupwise train {run}/recipe.toml"
    if path.is_dir() and (path / "config.json").is_file():
        return f"it is a model: --model {file}"
    if is_source(file) or path.suffix == ".txt" or (file in PRESETS and not path.exists()):
        return f"data are named with an option: --data {file}"
    if "/" in file and not path.suffix[1:2].isalpha() and not path.exists() and not path.parent.is_dir():
        return f"name a TOML file; a model of the hub is named with an option: --model {file}"
    return ""
