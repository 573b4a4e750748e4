"""Prints methods and recipes (`show`), and their differences (`diff`), as plain text."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groupwise.certificates.proofs import proofs_of
from groupwise.config import recipe_toml
from groupwise.config import registry as names
from groupwise.config.diff import diff, label
from groupwise.config.packaged import packaged_recipes
from groupwise.config.parse_toml_values import own_arguments
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import method_suggestion, one_error
from groupwise.core import Usage, looks_like_path, or_near
from groupwise.methods import Method, PaperReference, reference_of
from groupwise.methods.families import method_family, published_name
from groupwise.rollout.prompt_template import OURS, wordings
from groupwise.runs.run_layout import RunLayout

WIDTH = 116


def show(what: str) -> str:
    """The text of a method (formula, constants, differences from its paper, its tests), or a recipe in full."""
    if (method := published_name(what)) in names.methods():
        return show_method(names.methods()[method])
    return recipe_toml.write(read(what)).rstrip()


def show_method(function: Callable[..., Method]) -> str:
    """The text of a published method, in sections."""
    reference, name = reference_of(function), function.__name__
    facts = f"{method_family(name)}, {reference.year}, {reference.contribution_kind}, {reference.evidence}"
    what, _, why = (inspect.getdoc(function) or "").partition("\n\n")
    changes = diff(names.methods()[reference.parent](), function()) if reference.parent else []
    sections = {
        f"{name}: {reference.source}": [*what.splitlines(), facts, "", *why.splitlines()],
        "code read": textwrap.wrap(reference.code, WIDTH),
        "formula": reference.formula.splitlines(),
        f"changes in {reference.parent}": changes,
        "arguments, each a field beside method.base": textwrap.wrap(arguments(function), WIDTH),
        "constants": recipe_toml.write(function()).rstrip().splitlines(),
        "differences": table(differences(reference, function()), WIDTH),
        "auto": auto_texts(function()),
        "effect": [reference.expected_effect.claim(name)]
        if reference.expected_effect
        else textwrap.wrap(reference.unmeasured_reason, WIDTH),
        "shown in expectation": [reference.toy_test] if reference.toy_test else [],
        "finding": textwrap.wrap(reference.our_finding, WIDTH),
        "proofs": list(proofs_of(function)),
    }
    return "\n\n".join(
        "\n".join([title, *(f"  {line}".rstrip() for line in lines)]) for title, lines in sections.items() if lines
    )


def arguments(function: Callable[..., Method]) -> str:
    """The arguments of a method's function that are no fields of `Method`, with their defaults, as one text.

    >>> from groupwise.methods import knapsack_rl
    >>> arguments(knapsack_rl)
    'min_answers = 2, max_answers = 128, target_mixed_probability = 0.9, bound = 5'
    """
    return ", ".join(f"{name} = {label(p.default, p.annotation)}" for name, p in own_arguments(function).items())


def differences(reference: PaperReference, method: Method) -> list[tuple[str, str, str, str]]:
    """The table of differences between a method's paper, other code and this package, with its header.

    Its last rows say where the texts are from that a method writes for a model that reads prose.
    """
    head = ("", "paper", "authors' code and others", "here")
    rows = [(d.subject, d.paper, d.code, d.ours) for d in reference.differences]
    for wording in wordings(method):
        source = wording.auto_default.other_models_default_source
        own = source.startswith(OURS)
        code = source.removeprefix(OURS).removeprefix(", with ") or "not found"
        rows.append((f"{wording.field_path} in prose", "", code, OURS if own else "that text"))
    return [head, *rows]


def auto_texts(method: Method) -> list[str]:
    """The two forms of each text whose default is `auto`: for the packaged models, and in prose for others."""
    lines: list[str] = []
    for wording in wordings(method):
        forms, prose = wording.auto_default, str(wording.auto_default.for_other_models).strip().splitlines()
        lines += [wording.field_path, f"  packaged models: {forms.for_packaged_models!r}"]
        lines += (
            [f"  prose: {forms.for_other_models!r}"]
            if len(prose) == 1
            else ["  prose:", *(f"    {x}".rstrip() for x in prose)]
        )
    return lines


def show_diff(a: str, b: str) -> str:
    """The differences between two methods or two recipes; a recipe and a method are compared as methods."""
    left, right = read(a), read(b)
    if type(left) is not type(right):
        left, right = (x.method if isinstance(x, Recipe) else x for x in (left, right))
    return "\n".join(diff(left, right)) or "no difference"


def read(what: str) -> Any:
    """Find what to show: a method by name, or the recipe of a file or run. Imports no user code. Raises `Usage`."""
    if (method := published_name(what)) in names.methods():
        return names.methods()[method]()
    path = packaged_recipes().get(what, Path(what))
    path = RunLayout(path).recipe if path.is_dir() else path
    if not path.is_file():
        known = method_suggestion(what, names.methods())
        fix = or_near(what, "name a recipe file or a run") if looks_like_path(what) else known
        raise Usage(f"{what!r} is neither a method nor a file", fix=fix)
    recipe, problems = recipe_toml.read_with_problems(path)
    if recipe is None or problems:
        raise one_error(problems)
    return recipe


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lay rows out as aligned columns of at most `width` characters in total, with wrapped cells.

    >>> print("\\n".join(table([("", "paper"), ("clip", "0.2 and 0.28")], 20)))
          paper
    clip  0.2 and 0.28
    """
    count = len(rows[0])
    longest = [max(len(row[c]) for row in rows) for c in range(count)]
    available, widths = width - 2 * (count - 1), [0] * count
    for done, c in enumerate(sorted(range(count), key=lambda c: longest[c])):
        widths[c] = min(longest[c], available // (count - done))
        available -= widths[c]
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, max(w, 1), break_on_hyphens=False) or [""] for cell, w in zip(row, widths)]
        for i in range(max(map(len, cells))):
            lines.append(
                "  ".join(f"{cell[i] if i < len(cell) else '':<{w}}" for cell, w in zip(cells, widths)).rstrip()
            )
    return lines
