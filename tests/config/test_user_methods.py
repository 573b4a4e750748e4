"""Methods and parts from a user's file, and tables that change some of a method's named values."""

from pathlib import Path
from typing import Any

import pytest

from groupwise.checks.check_method import dry_run, inactive_parts
from groupwise.config.recipe_toml import override, read_recipe, write
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import Usage
from groupwise.learner import InitialPolicy
from groupwise.methods import dapo, gmpo, grpo, gspo
from tests.checks import check

MINE = '''
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from groupwise.data import Subscore, aggregate
from groupwise.methods import Method
from groupwise.objective import Objective


@dataclass(frozen=True)
class Scaled:
    """An advantage with a constant."""

    factor: float = 2.0

    def __call__(self, x, batch):
        return x * self.factor


@aggregate
def third_mean(step):
    """An aggregate."""
    return torch.full_like(step.advantage, 1 / 3)


@dataclass(frozen=True)
class Formatted:
    """A filter on a measure of the verdicts."""

    needs: ClassVar = frozenset({Subscore("format")})

    def __call__(self, rollout):
        return rollout[Subscore("format")] >= 0


@dataclass(frozen=True)
class Wrapped:
    """An advantage with a part in an untyped field."""

    inner: Any = Scaled()
    times: Any = 1

    def __call__(self, x, batch):
        return self.inner(x, batch) * self.times


def etr():
    return Method(filter=Formatted(), advantage=(Scaled(),), objective=Objective(aggregate=third_mean))


def broken():
    raise KeyError("oops")


def number():
    return 3
'''


@pytest.fixture
def use(tmp_path: Path) -> UserCode:
    (tmp_path / "mine.py").write_text(MINE)
    return load_use(Permissions(use=[str(tmp_path / "mine.py")]))


@pytest.mark.parametrize("form", ["method = 'mine:etr'", "method = { base = 'mine:etr' }"])
def test_a_method_of_a_users_file_is_read_checked_written_and_changed(form: str, use: UserCode) -> None:
    recipe = read_recipe(form, use=use)
    assert type(recipe.method.advantage[0]).__name__ == "Scaled" and dry_run(recipe) == []
    text = write(recipe)
    assert "mine:Scaled" in text and "mine:third_mean" in text and read_recipe(text, use=use) == recipe
    changed = read_recipe(form, [("method.group_size", "4"), ("method.advantage.0.factor", "3")], use=use)
    assert changed.method.group_size == 4 and changed.method.advantage[0].factor == 3.0


def test_parts_of_a_users_file_are_found_by_name_in_their_sockets(use: UserCode) -> None:
    text = """
[method]
base = "grpo"
filter = "mine:Formatted"
advantage = [{ kind = "mine:Scaled", factor = 0.5 }]
objective = { aggregate = "mine:third_mean" }
"""
    recipe = read_recipe(text, use=use)
    assert recipe.method.advantage[0].factor == 0.5 and dry_run(recipe) == []
    assert read_recipe(write(recipe), use=use) == recipe


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mine:missing", "missing"),
        ("mine:broken", "raises KeyError: 'oops'"),
        ("mine:number", "returns int, not a Method"),
        ("grpoo", "unknown method 'grpoo'; did you mean grpo?"),
    ],
)
def test_an_invalid_method_of_a_users_file_is_refused(name: str, what: str, use: UserCode) -> None:
    with pytest.raises(Usage) as error:
        read_recipe(f"method = '{name}'", use=use)
    assert what in str(error.value)


def test_a_method_of_a_file_that_is_not_loaded_is_refused_with_the_option() -> None:
    with pytest.raises(Usage) as error:
        read_recipe("method = 'mine:etr'")
    assert "--use mine.py" in str(error.value)


def test_an_untyped_field_holds_a_part_or_a_number(use: UserCode) -> None:
    text = "method.base = 'grpo'\nmethod.advantage = [{ kind = 'mine:Wrapped', inner = %s, times = 3 }]"
    recipe = read_recipe(text % "{ kind = 'mine:Scaled', factor = 5 }", use=use)
    (wrapped,) = recipe.method.advantage
    assert wrapped.inner.factor == 5.0 and wrapped.times == 3 and dry_run(recipe) == []
    assert read_recipe(write(recipe), use=use) == recipe


def test_a_table_of_named_values_is_merged_and_an_empty_table_removes_all() -> None:
    slow: tuple[tuple[str, Any], ...] = (("reference", InitialPolicy()), ("slow", InitialPolicy()))
    assert override(grpo(), "models.slow", "InitialPolicy").models == slow
    text = "[method]\nbase = 'grpo'\nmodels = { slow = 'InitialPolicy' }"
    assert read_recipe(text).method.models == slow
    text = "[method]\nbase = 'grpo'\nmodels = {}\nobjective.penalties = []"
    assert read_recipe(text).method.models == ()


def test_an_option_below_a_field_that_is_none_names_the_missing_field() -> None:
    text = write(read_recipe("method = 'gspo'"))
    assert 'warm_start = "none"' in text
    with pytest.raises(Usage, match="WarmStart needs demonstrations"):
        read_recipe(text, [("warm_start.steps", "10")])
    overrides = [("warm_start.steps", "10"), ("warm_start.demonstrations", "rows.jsonl")]
    warm_start = read_recipe(text, overrides).warm_start
    assert warm_start is not None and warm_start.steps == 10


def test_bounds_that_cannot_have_an_effect_are_noted(tmp_path: Path) -> None:
    (note,) = inactive_parts(grpo())
    assert "the bounds of Clip have no effect" in note and "method.minibatches" in note
    assert inactive_parts(gspo()) == inactive_parts(dapo()) == []
    assert "PowerMeanRatio" in inactive_parts(gmpo(minibatches=1))[0]
    path, lines = tmp_path / "r.toml", []
    path.write_text("method = 'grpo'\nsampling.max_tokens = 16\n")
    assert check(path, notify=lines.append) == [] and note in lines
    assert inactive_parts(override(grpo(), "epochs", "2")) == []
