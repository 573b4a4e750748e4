"""The arguments of a method's function are set as its fields are: in TOML, on the command line, from Python."""

import inspect
import re
from dataclasses import fields

import pytest

from groupwise.api import load_method
from groupwise.commands.show_and_diff import show
from groupwise.config.recipe_errors import unknown_field
from groupwise.config.recipe_toml import plain, read, read_recipe, write
from groupwise.core import Usage
from groupwise.methods import (
    HintAtLevelStrategy,
    Method,
    SumProposalParser,
    expo,
    m_grpo,
    on_policy_distillation,
    published,
    reference_of,
    sage_hint,
    syn_grpo,
)
from groupwise.methods.families import methods_with_argument

FIELDS = {field.name for field in fields(Method)}
OWN = {
    (method.__name__, name): parameter
    for method in published
    for name, parameter in inspect.signature(method).parameters.items()
    if name not in {*FIELDS, "base"}  # `base` names the method: s_grpo's is a constant of its shaping
}
SHOWN = [
    (method, name)
    for method, name in OWN
    for difference in reference_of(next(m for m in published if m.__name__ == method)).differences
    if re.search(rf'\b{name}\s*=\s*["\w\d.]', difference.ours)
]
"""The arguments that a table of differences names, as in `form = "light"`."""


def test_every_argument_can_be_set_by_its_name():
    """A recipe with the argument's default as a field beside `base` is the method itself, for all arguments."""
    for (name, argument), parameter in OWN.items():
        value = plain(parameter.default, parameter.annotation)
        assert load_method(name, **{argument: value}) == load_method(name), (name, argument)


def test_the_arguments_that_the_tables_name_are_options_of_the_command_line():
    assert len(SHOWN) >= 36 and {("sage_hint", "form")} | set(SHOWN) <= set(OWN)
    assert not any(unknown_field(f"method.{argument}") for _, argument in SHOWN)
    for method, argument in SHOWN:
        assert method in methods_with_argument()[argument]
        text = show(method)
        (line,) = re.findall(r"arguments, each a field beside method.base\n((?:  .*\n)+)", text)
        assert f"{argument} = " in line.replace("\n ", "")


@pytest.mark.parametrize(("text", "value", "method"), [
    ('"light"', "light", sage_hint), ('"fifo"', "fifo", m_grpo), ("true", "true", expo),
])  # fmt: skip
def test_a_recipe_and_the_command_line_give_the_value_of_the_function(text, value, method):
    argument = {sage_hint: "form", m_grpo: "align", expo: "explain_always"}[method]
    expected = method(**{argument: value if value != "true" else True})
    assert expected != method()
    table = f'[method]\nbase = "{method.__name__}"\n{argument} = {text}\n'
    by_option = read_recipe("", [("method", method.__name__), (f"method.{argument}", value)]).method
    assert read_recipe(table).method == by_option == expected
    assert read(Method, write(expected)) == expected, "a run stores the long form"


def test_arguments_and_fields_stand_side_by_side():
    text = (
        'method = { base = "sage_hint", form = "light", group_size = 4, strategy.prompt_template = "{hint}{problem}" }'
    )
    method = read_recipe(text).method
    assert isinstance(method.strategy, HintAtLevelStrategy)
    assert (method.group_size, method.strategy.prompt_template) == (4, "{hint}{problem}")


def test_an_argument_may_be_a_part():
    method = read_recipe('[method]\nbase = "syn_grpo"\nsource = "SumProposalParser"\nrate = 0.5').method
    assert method == syn_grpo(source=SumProposalParser(), rate=0.5)


@pytest.mark.parametrize(("text", "message"), [
    ('method = { base = "sage_hint", form = "lit" }', "'lit' is not one of escalate, light"),
    ('method = { base = "sage_hint", levels = "x" }', "expected a whole number"),
    ('method = { base = "sage_hint", frm = "light" }', "did you mean form?"),
    ('method = { base = "grpo", align = "fifo" }', "it is an argument of m_grpo"),
    ('method = { align = "fifo" }', "it is an argument of m_grpo"),
    ('method = { base = "rest_rl", samples_per_prompt = 0 }', "needs samples_per_prompt >= 1"),
])  # fmt: skip
def test_errors_name_the_argument(text, message):
    with pytest.raises(Usage, match=re.escape(message)):
        read_recipe(text)


def test_a_field_that_is_an_argument_too_is_the_field():
    assert read_recipe("method = { base = 'sage_hint', minibatches = 4 }").method.minibatches == 4
    assert on_policy_distillation().group_size == load_method("on_policy_distillation").group_size
