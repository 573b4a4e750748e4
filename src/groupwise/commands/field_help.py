"""`groupwise help FIELD`: the meaning of a recipe's field. It imports no torch."""

import re
import shlex
import textwrap
from difflib import get_close_matches

from groupwise.config.fields import (
    SECTIONS,
    RecipeField,
    declared,
    part_constants,
    parts_of,
    recipe_fields,
    section_text,
)
from groupwise.core import Usage, visible

WIDTH = 116


def explain(name: str) -> int:
    """Print the help on a recipe field, a section or a component's constant; without a name, a list of all fields."""
    print(visible(field_help(name.removeprefix("--").removeprefix("recipe.").strip(".")), lines=True))
    return 0


def field_help(name: str) -> str:
    """The help text of a dotted field name. Raises `Usage` for a name that is no field."""
    fields = recipe_fields()
    if not name:
        return table(list(fields.values())) + "\n\ngroupwise help FIELD prints one in full"
    if name in fields:
        return field_text(fields[name])
    if name in SECTIONS:
        listed = [field for path, field in fields.items() if path.startswith(f"{name}.")]
        return f"{name}: {section_text(name)}\n\n{table(listed)}"
    owner, _, constant = name.rpartition(".")
    owner = owner if owner in fields else owner.rpartition(".")[0]  # an element of a list: method.advantage.0.eps
    if owner in fields and (parts := part_constants(socket_of(fields[owner]), constant)):
        lines = [
            f"{part}: {kind}, default {default or 'none: a value is required'}"
            for part, (kind, default) in parts.items()
        ]
        return "\n".join([f"{name}: a constant of the component in {owner}", *(f"  {line}" for line in lines)])
    matches = get_close_matches(name, [*fields, *SECTIONS], n=3, cutoff=0.5) or same_end(name)
    fix = f"did you mean {' or '.join(matches)}?" if matches else "groupwise help prints all fields"
    raise Usage(f"a recipe has no field {name!r}", fix=fix)


def same_end(name: str) -> list[str]:
    """Suggestions for an unknown name: the recipe fields with the same last word.

    >>> same_end("trainer.lr")
    ['warm_start.optimizer.lr', 'optimizer.lr']
    """
    end = name.rpartition(".")[2]
    return [path for path in recipe_fields() if path.rpartition(".")[2] == end]


def socket_of(field: RecipeField) -> str:
    """The kind of components that a field takes, such as `Surrogate`; empty for a field of another type."""
    return next(iter(re.findall(r"[A-Z]\w+", field.type)), "")


def field_text(field: RecipeField) -> str:
    """A field in full: meaning, type, unit, default, an example on the command line and in a recipe."""
    value = field.example if field.example[:1] in "[{\"'" or plain(field) else f'"{field.example}"'
    rows = [
        ("type", field.type),
        ("unit", field.unit),
        ("default", field.default or ("the recipe's" if field.name == "method.base" else "none: a value is required")),
        ("option", f"--{field.name} {shlex.quote(field.example)}"),
        ("recipe", f"{field.name} = {value}"),
    ]
    parts = parts_of(socket_of(field))
    if parts:
        rows.append(("parts", ", ".join(parts)))
    lines = [f"  {word:<9} {text}" for word, text in rows if text]
    constants = [
        f"  {part}: {', '.join(n for n, _, _ in declared(module, part))}"
        for part, module in parts.items()
        if declared(module, part)
    ]
    return "\n".join(
        [f"{field.name}: {field.meaning}", *lines, *(["constants of the components:", *constants] if constants else [])]
    )


def plain(field: RecipeField) -> bool:
    """Whether the example is a number or a boolean, which a recipe writes without quotes."""
    return field.example in ("true", "false") or field.example.replace(".", "").replace("e-", "").isdecimal()


def table(fields: list[RecipeField]) -> str:
    """Fields as a table of text: name, default, meaning."""
    width = max(len(field.name) for field in fields)
    rows = []
    for field in fields:
        text = f"{field.meaning} (default {field.default})" if field.default not in ("", '""') else field.meaning
        rows += textwrap.wrap(f"{field.name:<{width}}  {text}", WIDTH, subsequent_indent=" " * (width + 2))
    return "\n".join(rows)
