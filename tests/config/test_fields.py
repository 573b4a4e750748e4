"""Fields of a recipe in words: none is missing, defaults are those of the classes, and no torch is imported."""

import subprocess
import sys
from dataclasses import MISSING, fields
from importlib import import_module

import pytest
from tools.fields_page import PAGE, fields_page

from groupwise.commands.field_help import field_help
from groupwise.config.fields import MEANINGS, SECTIONS, home, recipe_fields
from groupwise.config.parse_toml_values import default
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_over, read_recipe
from groupwise.core import Usage
from groupwise.methods import Method


def test_each_field_has_its_meaning_and_no_meaning_is_left_over():
    assert [name for name, field in recipe_fields().items() if not field.meaning] == [], "add them to config/fields.py"
    assert set(MEANINGS) <= set(recipe_fields())


def test_each_section_lists_the_fields_of_its_class():
    for section, name in SECTIONS.items():
        cls = getattr(import_module(home(name)), name)
        paths = [f"{section}.{f.name}".removeprefix(".") for f in fields(cls)]
        assert [p for p in paths if p not in SECTIONS] == [
            p for p in recipe_fields() if p.rpartition(".")[0] == section and p != "method.base"
        ]


def test_printed_defaults_are_the_defaults():
    """Each printed number, boolean and text equals the default of the class."""
    for section, name in SECTIONS.items():
        cls = getattr(import_module(home(name)), name)
        for f in fields(cls):
            path = f"{section}.{f.name}".removeprefix(".")
            if path in SECTIONS or (value := default(f)) is MISSING:
                continue
            text = recipe_fields()[path].default
            if isinstance(value, bool):
                assert text == str(value).lower(), path
            elif isinstance(value, int | float):
                assert float(text) == value, path
            elif isinstance(value, str):
                assert text == f'"{value}"', path


@pytest.mark.parametrize("name", [n for n, f in recipe_fields().items() if f.example and n.split(".")[0] in
                                  ("prompts", "iterations", "seed", "max_unverifiable", "correct_threshold", "trackers",
                                   "machine",
                                   "save", "optimizer", "sampling", "engine")])  # fmt: skip
def test_examples_are_values_of_their_fields(name: str):
    example, section, field = recipe_fields()[name].example, *name.rpartition(".")[::2]
    recipe = Recipe(method=Method())
    owner = getattr(recipe, section) if section else recipe
    assert getattr(read_over(owner, section, [(field, example)]), field) is not None


def test_help_of_the_command_line_equals_the_option():
    text = field_help("method.group_size")
    option = next(line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("  option"))
    name, value = option.removeprefix("--").split()
    assert read_recipe("method = 'grpo'", [(name, value)]).method.group_size == int(value)
    assert "default   8" in text and "unit      answers" in text


def test_constants_of_parts_are_fields_too():
    assert "Clip: a number, default 0.2" in field_help("method.objective.surrogate.high")
    assert "Standardised: a number" in field_help("method.advantage.0.eps")
    assert "Clip" in field_help("method.objective.surrogate") and "save.keep" in field_help("save")


def test_an_unknown_field_names_the_nearest():
    with pytest.raises(Usage) as caught:
        field_help("machine.microbatch")
    assert "machine.microbatch_tokens" in caught.value.fix
    assert "optimizer.lr" in field_help("trainer.lr")


def test_help_imports_no_torch():
    script = (
        "import sys; from groupwise.__main__ import main; main(['help', *sys.argv[1:]]); print('torch' in sys.modules)"
    )
    for words in ([], ["machine.device"], ["method.objective.surrogate.low"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"


def test_the_page_is_current():
    assert PAGE.read_text("utf-8") == fields_page(), "run: make docs"
