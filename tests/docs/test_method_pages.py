"""The page of each published method, which the site generates: it has what the method's file says."""

import re
from dataclasses import fields
from functools import reduce

import pytest
from tools.family_tree import WIDTH, family_tree
from tools.method_pages import method_page

from groupwise.commands.show_and_diff import auto_texts
from groupwise.config import recipe_toml
from groupwise.config.diff import diff
from groupwise.config.parse_toml_values import own_arguments
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.registry import methods
from groupwise.methods import Method, reference_of
from groupwise.methods.families import FAMILIES


@pytest.mark.parametrize("name", methods())
def test_the_page_has_all_of_the_method(name: str) -> None:
    function, page = methods()[name], method_page(name)
    reference, method = reference_of(function), function()
    changes = diff(methods()[reference.parent](), method) if reference.parent else []
    constants = recipe_toml.write(method).rstrip().splitlines()
    blocks = [reference.formula.splitlines(), changes, constants, auto_texts(method)]
    for lines in filter(None, blocks):
        assert "\n".join([*lines, "```"]) in page
    assert page.count("```") == 2 * sum(map(bool, blocks))
    facts = [
        reference.evidence,
        reference.code_link,
        *reference.proof_tests,
        reference.unmeasured_reason,
        reference.our_finding,
    ]
    facts += [reference.expected_effect.claim(name)] if reference.expected_effect else []
    facts += [f"- `{argument}`: " for argument in own_arguments(function)]
    facts += [cell.replace("|", r"\|") for d in reference.differences for cell in (d.subject, d.paper, d.code, d.ours)]
    assert [fact for fact in facts if fact not in page] == []
    assert page == method_page(name)


@pytest.mark.parametrize("name", methods())
def test_fields_that_the_page_names_exist(name: str) -> None:
    """Words such as strategy.prompt_template: fields of the method, or of a recipe."""
    prose = re.sub(r"^```.*?^```", "", method_page(name), flags=re.M | re.S)
    method = methods()[name]()
    recipe = Recipe(method=method, warm_start=WarmStart(demonstrations="rows.jsonl"))
    for path in re.findall(r"(?<![\w./@-])[a-z_]+(?:\.[a-z_]+)+\b(?!/)", prose):
        head, *rest = path.removeprefix("method.").split(".")
        if head in {f.name for f in (*fields(Method), *fields(Recipe))}:
            reduce(getattr, [head, *rest], method if hasattr(method, head) else recipe)


def test_the_legend_of_the_tree_does_not_overlap() -> None:
    names = re.findall(r'<text x="(\d+)" y="24">(\w+)</text>', family_tree())
    ends = [int(x) + 7.5 * len(name) for x, name in names]
    assert [name for _, name in names] == list(FAMILIES) and ends[-1] < WIDTH
    assert all(end < int(x) - 12 - 6 for end, (x, _) in zip(ends, names[1:]))
