"""The texts that sampling strategies write: templates with placeholders, and their default in two forms.

The packaged tasks have a form without words, which the packaged models were trained on. All other models read prose.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

__all__ = ["AUTO", "ModelDependentDefault", "check_wording", "fill", "worded"]

AUTO = "auto"
"""The text of a field that gets its form when a recipe meets its model."""
UNWORDED = "the strategy has no words yet: worded() gives it the form for its model"
OURS = "our wording"
"""The source of prose that is neither a paper's nor its authors'."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"[^\W\d_]{2}")
T = TypeVar("T")
Form = Literal["packaged", "prose"]
FORMS: tuple[Form, ...] = ("packaged", "prose")


@dataclass(frozen=True, slots=True)
class ModelDependentDefault:
    """The two texts, or numbers, of a field whose default is `auto`: for packaged models without words, and in prose.

    `other_models_default_source` is where the prose is from. A component names its own in the class variable
    `model_dependent_defaults`, by field.
    """

    for_packaged_models: str | int
    for_other_models: str | int
    other_models_default_source: str = OURS

    def of(self, form: Form) -> str | int:
        """The text, or number, of one form."""
        return self.for_packaged_models if form == "packaged" else self.for_other_models


class AutoTextField(NamedTuple):
    """A field of a component that is a text with two forms: its path, its text, and its two forms."""

    field_path: str
    text: str | int
    auto_default: ModelDependentDefault

    @property
    def wordless(self) -> bool:
        """Whether the text is a template without a word of instruction, and not the prose form itself."""
        between = _PLACEHOLDER.sub(" ", str(self.text))
        return between != self.text and self.text != self.auto_default.for_other_models and not _WORD.search(between)


def fill(words: str, values: Mapping[str, str]) -> str:
    """A template text with each `{name}` replaced by its value. Values are inserted as they are, in one pass.

    >>> fill("{problem} Try: {draft}", {"problem": "1+1=", "draft": "{problem}"})
    '1+1= Try: {problem}'
    """
    assert words != AUTO, UNWORDED
    return _PLACEHOLDER.sub(lambda match: values[match[1]], words)


def check_wording(words: str, names: tuple[str, ...]) -> None:
    """ValueError if a template text has an unknown placeholder, or lacks one of `names`; none for `auto`."""
    found = set(_PLACEHOLDER.findall(words))
    if words != AUTO and found != set(names):
        wanted = " and ".join(f"{{{name}}}" for name in names)
        raise ValueError(f"the template text {words!r} must have exactly the placeholders {wanted}, or be {AUTO!r}")


def wordings(part: Any, path: str = "") -> Iterator[AutoTextField]:
    """The texts with two forms of a component and, recursively, of its fields."""
    for name, inner in _inner(part):
        where = f"{path}.{name}" if path else name
        if name in getattr(part, "model_dependent_defaults", {}):
            yield AutoTextField(where, inner, part.model_dependent_defaults[name])
        else:
            yield from wordings(inner, where)


def worded(part: T, form: Form) -> T:
    """The component with one form in place of each `auto`, in it and recursively in its fields.

    >>> from groupwise.methods import DraftAndRefine
    >>> worded(DraftAndRefine(), "packaged").prompt_template
    '{problem}{draft};{problem}'
    """
    model_dependent_defaults: Mapping[str, ModelDependentDefault] = getattr(part, "model_dependent_defaults", {})
    texts = {
        name: model_dependent_defaults[name].of(form)
        for name, text in _inner(part)
        if name in model_dependent_defaults and text == AUTO
    }
    parts = {name: new for name, old in _inner(part) if (new := worded(old, form)) is not old}
    changed = texts | parts
    return replace(part, **changed) if changed else part  # type: ignore[type-var]


def _inner(part: Any) -> list[tuple[str, Any]]:
    """The fields of a component by name; none for anything else."""
    return (
        [(f.name, getattr(part, f.name)) for f in fields(part)]
        if is_dataclass(part) and not isinstance(part, type)
        else []
    )
