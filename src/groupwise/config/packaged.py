"""The packaged recipes, by name: `groupwise train --recipe smollm2`."""

from pathlib import Path

from groupwise.data import Usage

__all__ = ["find_recipe"]

PACKAGE = Path(__file__).parents[1]
HOMES = (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes")
"""The recipes of an installed wheel, and those of a clone."""


def find_recipe(name: str) -> Path:
    """The file of a packaged recipe by its name, or a path as it is. `Usage` names the recipes for an unknown name.

    >>> find_recipe("smollm2").name, str(find_recipe("mine/fast.toml"))
    ('smollm2.toml', 'mine/fast.toml')
    """
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    home = next((home for home in HOMES if home.is_dir()), HOMES[0])
    recipes = {file.stem: file for file in sorted(home.glob("*.toml"))}
    if name not in recipes:
        raise Usage(f"no packaged recipe is called {name!r}", fix=f"take {', '.join(recipes)}, or name a TOML file")
    return recipes[name]
