"""Recipes of an earlier version: errors that name the new key, and the upgrade."""

import tomllib
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.config.parse_values import Reading
from groupwise.config.recipe import Machine
from groupwise.config.recipe_toml import override, read_recipe
from groupwise.config.registry import methods, parts
from groupwise.config.upgrade import upgrade_text
from groupwise.core import Usage
from groupwise.learner import RouterBalance
from groupwise.methods import Method, grpo
from groupwise.runs.format_1 import KEYS, PARTS, upgraded

RECIPES = sorted((Path(__file__).parent / "old_recipes").glob("*.toml"))
OLD = """\
# keep what is mixed; passes: 2
prompts = 16
iterations = 2
machine = { piece_tokens = 512, device = "cpu" }

[method]
base = "grpo"
keep = "mixed_outcomes"  # keep
"passes" = 2
models.reference = { kind = 'Start' }
schedules = { passes = { kind = "Ramp", start = 1, end = 2, over = 1 } }

[save]
keep = 3
"""
NEW = """\
# keep what is mixed; passes: 2
prompts = 16
iterations = 2
machine = { microbatch_tokens = 512, device = "cpu" }

[method]
base = "grpo"
filter = "mixed_outcomes"  # keep
"epochs" = 2
models.reference = { kind = 'InitialPolicy' }
schedules = { epochs = { kind = "Ramp", start = 1, end = 2, over = 1 } }

[save]
keep = 3
"""


def test_the_new_names_exist_and_the_old_ones_do_not():
    for table, cls in (("method", Method), ("machine", Machine)):
        names = set(cls.__dataclass_fields__)
        assert set(KEYS[table].values()) <= names and not set(KEYS[table]) & names
    assert set(PARTS.values()) <= set(parts()) and not set(PARTS) & (set(parts()) - set(methods()))


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ("method.keep = 'everything'", "recipe.method: 'keep' was renamed to 'filter'"),
        ("method.passes = 2", "recipe.method: 'passes' was renamed to 'epochs'"),
        ("method = 'gspo'\nmachine.piece_tokens = 9", "recipe.machine: 'piece_tokens' was renamed to 'microbatch_to"),
        ("method.routing.balance = 0.1", "recipe.method.routing: 'balance' is now method.auxiliary = [{ kind = "),
        ("method.models.reference = 'Start'", "recipe.method.models.reference: 'Start' was renamed to 'InitialPolicy'"),
    ],
)
def test_an_old_name_raises_with_the_new_name(toml: str, error: str):
    with pytest.raises(Usage) as raised:
        read_recipe(f"prompts = 16\n{toml}")
    assert raised.value.what.startswith(error) and "groupwise recipe upgrade FILE" in raised.value.fix


def test_an_old_name_in_an_override_raises_with_the_new_name():
    with pytest.raises(Usage, match="'passes' was renamed to 'epochs'"):
        override(grpo(), "passes", "2")
    assert Reading().problems == []


def test_upgrading_renames_keys_and_leaves_comments_and_layout():
    assert upgrade_text(OLD) == NEW
    assert upgrade_text(NEW) == NEW
    assert read_recipe(NEW).method.epochs == 2 and read_recipe(NEW).save.keep == 3


def test_names_that_the_text_spells_otherwise_are_renamed_in_the_data():
    assert tomllib.loads(upgrade_text('method = { "k\\u0065ep" = "everything" }')) == {
        "method": {"filter": "everything"}
    }


@pytest.mark.parametrize("data", [{"method": "gspo"}, {"method": {"models": "none", "schedules": 3}}, {}, {"x": 1}])
def test_other_data_stay(data: dict):
    assert upgraded(data) == data


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_format_1_upgrades_to_one_that_reads(path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["recipe", "upgrade", str(path)]) == 0
    text = capsys.readouterr().out
    recipe = read_recipe(text)
    assert recipe.prompts == 16 and [line for line in path.read_text().splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]


def test_a_recipe_in_full_has_old_names():
    """The fixture covers all renamed names."""
    text = (Path(__file__).parent / "old_recipes" / "grpo_in_full.toml").read_text()
    assert all(f"{key} = " in text for table in KEYS.values() for key in table) and '"Start"' in text
    with pytest.raises(Usage, match="6 errors"):
        read_recipe(text)


def test_the_command_refuses_a_file_that_is_not_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.toml").write_text("x =")
    assert main(["recipe", "upgrade", str(tmp_path / "a.toml")]) == 2
    assert "is not TOML" in capsys.readouterr().err


def test_the_balance_of_routers_becomes_an_auxiliary_loss():
    old = "[method]\nbase = 'grpo'\nrouting = { replay = 'engine', balance = 0.1 }\nmodels.reference = 'Start'"
    new = read_recipe(upgrade_text(old)).method
    assert new.auxiliary == (RouterBalance(0.1),) and new.router_replay == "engine"
