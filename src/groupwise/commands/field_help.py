"""`groupwise help FIELD`: the meaning of a recipe's field. It imports no torch."""

import re
import shlex
import sys
import textwrap
from difflib import get_close_matches

from groupwise.commands.command_table import COMMANDS
from groupwise.commands.unknown_options import corrected, first_name, options_of_command
from groupwise.config.fields import (
    SECTIONS,
    RecipeField,
    declared,
    documentation,
    part_constants,
    parts_of,
    recipe_fields,
    same_end,
    section_text,
)
from groupwise.config.trl_and_verl_names import EARLIER_COMPONENTS, answer_of, field_named, other_name_fix
from groupwise.core import Usage, class_name, part_names, terminal_width, visible
from groupwise.methods.families import method_files

WIDTH = 116


def explain(name: str) -> int:
    """Print the help on a recipe's field, a section, a constant or a component; without a name, a list of fields."""
    print(visible(field_help(name.lstrip("-").removeprefix("recipe.").strip(".").replace("-", "_")), lines=True))
    return 0


def field_help(name: str) -> str:
    """The help text of a dotted field name, or of another name of one. Raises `Usage` for a name of nothing."""
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
        lines = [constant_text(part, *declaration) for part, declaration in parts.items()]
        return "\n".join([f"{name}: a constant of the component in {owner}", *lines])
    if (field := first_name(name)) != name or (field := field_named(name)):
        return f"{name} is {field} here\n\n{component_of_answer(name) or field_help(field)}"
    if component := component_text(class_name(name)) or component_text(name):
        return component
    matches = same_end(name) or [one for one in [corrected(name), component_named(name)] if one]
    fix = f"did you mean {' or '.join(matches)}?" if matches else "groupwise help prints all fields"
    raise Usage(f"a recipe has no field {name!r}", fix=elsewhere(name) or other_name_fix(name) or fix)


def elsewhere(name: str) -> str:
    """The command that explains a name which is no field of a recipe: a method, a command, an option of commands."""
    if name in method_files():
        return f"it is a method: groupwise show {name}"
    if any(command.name == name for command in COMMANDS):
        return f"it is a command: groupwise {name} --help"
    option = name.replace("_", "-")
    takers = [command.name for command in COMMANDS if option in options_of_command(command)]
    return f"--{option} is an option of {', '.join(takers)}: groupwise {takers[0]} --help" if takers else ""


def component_named(name: str) -> str:
    """The component that a misspelled or an earlier name means; empty without one."""
    names = {part for parts in part_names().values() for part in parts}
    return EARLIER_COMPONENTS.get(name) or next(iter(get_close_matches(name, names, n=1, cutoff=0.68)), "")


def component_of_answer(name: str) -> str:
    """The component in the answer for an option of TRL or verl: its documentation; empty for another answer."""
    value = answer.equivalent_field_value if (answer := answer_of(name)) else None
    kind = value.get("kind") if isinstance(value, dict) else value
    return component_text(kind) if isinstance(kind, str) else ""


def component_text(name: str) -> str:
    """A packaged component: its documentation, its constants, and the fields that take it. Empty for another name."""
    sockets = [socket for socket in part_names() if name in parts_of(socket)]
    if not sockets:
        return ""
    module = parts_of(sockets[0])[name]
    takers = [field.name for field in recipe_fields().values() if socket_of(field) in sockets]
    constants = [constant_text(*declaration) for declaration in declared(module, name)]
    return "\n".join(
        [f"{name}: {documentation(module, name)}", *constants, *([f"a value of {', '.join(takers)}"] if takers else [])]
    )


def constant_text(name: str, kind: str, default: str) -> str:
    """A line about a constant of a component."""
    return f"  {name}: {kind}, default {default or 'none: a value is required'}"


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
        rows += textwrap.wrap(
            f"{field.name:<{width}}  {text}",
            min(terminal_width(sys.stdout, WIDTH), WIDTH),
            subsequent_indent=" " * (width + 2),
        )
    return "\n".join(rows)
