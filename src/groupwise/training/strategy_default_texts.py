"""The words of sampling strategies: the form of the text in place of each `auto` of a recipe, by the model."""

from collections.abc import Iterator
from dataclasses import replace

from groupwise.config.recipe import Recipe
from groupwise.models import Tokenizer
from groupwise.rollout.prompt_template import AUTO, AutoTextField, Form, worded, wordings

SHOWN = 120
"""The most characters of a text in a note."""


def form_for(tokenizer: Tokenizer) -> Form:
    """The form of prompts that a model reads: the packaged tasks' form if its tokens are characters, else prose."""
    return "packaged" if tokenizer.of_characters else "prose"


def with_wording(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The recipe with the text for its model in place of each `auto` of its strategies."""
    return in_form(recipe, form_for(tokenizer))


def in_form(recipe: Recipe, form: Form) -> Recipe:
    """The recipe with this form in place of each `auto` of its strategies."""
    return replace(recipe, method=worded(recipe.method, form), evaluate=worded(recipe.evaluate, form))


def wording_notes(recipe: Recipe, tokenizer: Tokenizer) -> Iterator[str]:
    """A note on the text in place of each `auto`, and on each text without words for a model that reads prose."""
    form = form_for(tokenizer)
    seen: set[AutoTextField] = set()
    for owner in ("method", "evaluate"):
        for wording in wordings(getattr(recipe, owner).strategy, "strategy"):
            if wording in seen:
                continue
            seen.add(wording)
            where = f"{owner}.{wording.field_path}"
            if wording.text == AUTO:
                text = wording.auto_default.of(form)
                source = f" ({wording.auto_default.other_models_default_source})" if form == "prose" else ""
                yield f"  note: {where} is auto, here {form}{source}: {_shown(text)}"
            elif form == "prose" and wording.wordless:
                what = f"{where} is {_shown(wording.text)}: it tells the model nothing, and this model reads prose"
                yield f'  note: {what}; set it to "auto", or write your own words'


def _shown(text: str | int) -> str:
    """The representation of a text, with its middle left out if it is long."""
    whole = repr(text)
    return whole if len(whole) <= SHOWN else f"{whole[: SHOWN // 2]} ... {whole[-SHOWN // 2 :]}"
