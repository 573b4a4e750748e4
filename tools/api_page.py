"""Write docs/api.md, the public names of the package and what may change about them: `python -m tools.api_page`."""

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import groupwise as gw
from groupwise.core import GroupwiseError, part_names
from groupwise.core.lazy_imports import ROOMS, home_of
from groupwise.runs.run_info import FORMAT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
QUALIFIED = re.compile(r"\b(?:groupwise|collections|jaxtyping|pathlib|typing|os)(?:\.\w+)*\.(?=\w)|~")
"""What precedes a name in the text of an annotation."""
LEVELS = (
    (
        "stable",
        f"""the names of `groupwise` under *Functions*, *Values*, *Settings* and *Errors*; [the fields of a
        recipe](fields.md); the commands, their options and [exit codes](errors.md); the files of [a run
        directory](runs.md#files), format {FORMAT}""",
        """a breaking change waits for the next middle number of the version, and the changelog has the line to write
        instead""",
    ),
    (
        "may change",
        "*Sockets*, their decorators and components; arguments of published methods; public names of the rooms",
        "may change in a middle number of the version; the changelog names it",
    ),
    (
        "internal",
        "names that begin with `_`; modules below a room; [private interfaces](private-interfaces.md)",
        "may change at any time",
    ),
)
"""A level of stability, what has it, and what it promises."""
TABLE = "\n".join(" ".join(f"| {' | '.join(row)} |".split()) for row in LEVELS)
HEAD = f"""\
# The API

`make docs` writes this page from the package, and a test compares them. [The library](library.md) explains the names;
here are their signatures, and what may change about them.

| level | what | promise |
|---|---|---|
{TABLE}

[Versions and releases](releasing.md) says what counts as breaking.
"""


def api_page() -> str:
    """The page as Markdown."""
    groups: dict[str, list[str]] = {title: [] for title in ("Functions", "Values", "Settings", "Errors")}
    for name in gw.__all__:
        if title := title_of(name):
            groups[title].append(name)
    lines = [HEAD]
    for title, names in groups.items():
        lines += [f"## {title}", "", *(line for name in names for line in entry(name))]
    lines += ["## Sockets", "", *sockets(), "", "## Rooms", "", *rooms()]
    return "\n".join(lines).rstrip() + "\n"


def title_of(name: str) -> str:
    """The section of a name of the package; empty for sockets, their decorators and `__version__`."""
    value = getattr(gw, name)
    if name == "__version__" or {name, name.capitalize()} & part_names().keys():
        return ""
    if not isinstance(value, type):
        return "Functions"
    if issubclass(value, GroupwiseError):
        return "Errors"
    return "Values" if home_of(name) in ("groupwise.data", "groupwise.api") else "Settings"


def entry(name: str) -> Iterator[str]:
    """A heading with the signature, the first paragraph of the docstring and the members of a class."""
    value = getattr(gw, name)
    yield from (f"### `gw.{name}`", "")
    if callable(value) and not isinstance(value, enum.EnumType) and not _is_socket(value):
        yield from ("```python", signature(f"gw.{name}", value), "```", "")
    elif isinstance(value, enum.EnumType):
        members: list[Any] = list(value)
        yield from (f"One of {', '.join(f'`{member.name}`' for member in members)}.", "")
    text = meaning(value) if callable(value) else 'The names of the components by socket: `gw.parts["Surrogate"]`.'
    yield from (text, "")
    if title_of(name) == "Values" and isinstance(value, type) and (found := dict(members_of(value))):
        yield from ("| member | meaning |", "|---|---|")
        yield from (f"| `{member}` | {text} |" for member, text in found.items())
        yield ""


def signature(name: str, value: Callable[..., Any]) -> str:
    """A call with all arguments, in one line or a line each."""
    parameters = [p for p in inspect.signature(value).parameters.values() if not p.name.startswith("_")]
    arguments: list[str] = []
    for parameter, before in zip(parameters, [None, *parameters]):
        if parameter.kind is parameter.KEYWORD_ONLY and (not before or before.kind is not parameter.KEYWORD_ONLY):
            arguments.append("*")
        arguments.append(argument(parameter))
    back = inspect.signature(value).return_annotation
    end = ")" if isinstance(value, type) or back is inspect.Signature.empty else f") -> {type_text(back)}"
    line = f"{name}({', '.join(arguments)}{end}"
    return line if len(line) <= 100 else f"{name}(\n" + "".join(f"    {text},\n" for text in arguments) + end


def argument(parameter: inspect.Parameter) -> str:
    """An argument with its type and its default; `...` for a default that is made for each call."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {type_text(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {default_text(parameter.default)}"


def type_text(annotation: Any) -> str:
    """An annotation without the modules of its names. Unions are sorted: Python's order depends on imports."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in (None, NoneType, ...):
        return "..." if annotation is ... else "None"
    if origin in (Union, UnionType):
        return " | ".join(sorted(map(type_text, inner), key=lambda text: (text == "None", text)))
    if isinstance(annotation, list):
        return f"[{', '.join(map(type_text, annotation))}]"
    if origin is None or origin is Literal:
        return QUALIFIED.sub("", inspect.formatannotation(annotation))
    return f"{origin.__name__}[{', '.join(map(type_text, inner))}]"


def default_text(default: Any) -> str:
    """A default value as one would write it, without the arguments that are defaults themselves."""
    if dataclasses.is_dataclass(default):
        fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
        given = inspect.signature(type(default)).parameters
        written = [f"{name}={value!r}" for name, value in fields.items() if value != given[name].default]
        return f"{type(default).__name__}({', '.join(written)})"
    text = re.sub(r"<function (?:\w+\.)*(\w+) at \w+>", r"\1", repr(default))
    return "..." if text.startswith("<") else QUALIFIED.sub("", text)


def members_of(kind: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties that a class itself defines, with the first sentence of their docstrings."""
    for name, value in vars(kind).items():
        member = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or not inspect.isfunction(member) or not member.__doc__:
            continue
        call = "" if isinstance(value, property) else f"({', '.join([*inspect.signature(member).parameters][1:])})"
        yield f"{name}{call}", first_sentence(member.__doc__)


def sockets() -> Iterator[str]:
    """The sockets with their decorators. Their signatures are on another page."""
    yield "A component is a subclass of one of these classes, or a function under the decorator."
    yield "[Sockets](sockets.md) has the signatures; `gw.parts` has the names of the components."
    yield from ("", "| socket | decorator | meaning |", "|---|---|---|")
    for socket in part_names():
        if socket in gw.__all__:
            decorator = f"`@gw.{socket.lower()}`" if socket.lower() in gw.__all__ else ""
            yield f"| `gw.{socket}` | {decorator} | {first_sentence(getattr(gw, socket).__doc__)} |"


def rooms() -> Iterator[str]:
    """The subpackages with public names."""
    yield "Everything else is imported from its room, as in `from groupwise.data import Segments`. The stub of a room,"
    yield "`src/groupwise/<room>/__init__.pyi`, lists its names. [Inside](anatomy.md) has a page for each room."
    yield from ("", "| room | subject |", "|---|---|")
    for room in ROOMS:
        module = f"groupwise.{room}"
        yield f"| `{module}` | {first_sentence(import_module(module).__doc__)} |"


def meaning(value: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join(dedent(inspect.getdoc(value) or "").partition("\n\n")[0].split()).replace("|", "&#124;")


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, in one line."""
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s(?=[A-Z`])", paragraph)[0].replace("|", "&#124;")


def _is_socket(value: Any) -> bool:
    """Whether a class is a Protocol or abstract without fields, so that its constructor says nothing."""
    return isinstance(value, type) and not dataclasses.is_dataclass(value) and bool(getattr(value, "_is_protocol", 0))


if __name__ == "__main__":
    PAGE.write_text(api_page(), encoding="utf-8")
