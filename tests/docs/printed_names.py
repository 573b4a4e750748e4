"""Reads the names that a page prints, and finds those that the package lacks.

A page prints commands with their options, lines and tables of TOML, calls of Python, and metrics: in fenced blocks, and
in code spans. A user types them, so each must exist as it is spelled.
"""

import argparse
import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import groupwise
from groupwise.commands.parsing import parser
from groupwise.config import registry
from groupwise.config.fields import SECOND_NAMES, SECTIONS, recipe_fields
from groupwise.config.trl_and_verl_names import answer_of
from groupwise.core import class_name
from groupwise.data import METRICS, find_metric
from groupwise.methods.families import method_files, methods_with_argument, published_name

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
LINE = re.compile(r"[a-z_.]+ = |\[[a-z_.]+\] ")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
KEYS_OF_USERS = re.compile(r"(template_arguments|method\.(models|states|schedules)|.*\.(weights|min_mean_scores))\.\w+")
"""Keys that a user chooses."""
NAMED = ("verifier", "reward", "method")
"""Fields whose text is the name of a verifier or a method."""
OPEN_SECTIONS = ("method", "engine", "optimizer")
"""Tables whose keys depend on their kind."""
USERS_FIELD = re.compile(r"^    (\w+)(?:: | = )|(\w+)=", re.M)
"""A field of a class, or an argument of a call, in a page's own Python file."""


def absent_names(page: str) -> set[str]:
    """The commands, options, keys, arguments and metrics of a page that the package lacks.

    Fields of classes that the page itself defines exist.
    """
    blocks, prose = FENCE.findall(page), FENCE.sub("", page)
    spans = [" ".join(span.split()) for span in SPAN.findall(prose)]
    python = [text for language, text in blocks if language == "python"]
    shell = "\n".join(text for language, text in blocks if language in ("sh", "console", "bash", ""))
    commands = re.findall(r"^(?:\$ )?(?:\w+=\S+ )*(groupwise .*)", re.sub(r"\\\n\s*", " ", shell), re.M)
    commands += [span if span[0] == "g" else f"groupwise * {span}" for span in spans if re.match("groupwise |--", span)]
    lines = [re.sub(r"^(\[+[\w.]+\]+) ", r"\1\n", span) for span in spans if LINE.match(span)]
    lines += [f"method.strategy = {span}" for span in spans if span.startswith("{ kind = ")]
    found = {name for command in commands for name in absent_words(command)}
    found |= {name for text in python for name in absent_arguments(text)}
    found |= {name for span in spans if "(" in span for name in absent_arguments(span, names_are_fields=True)}
    found |= {key for text in [*(text for kind, text in blocks if kind == "toml"), *lines] for key in absent_keys(text)}
    found |= {span for span in spans if is_absent_metric(span)}
    own = {name for text in python for match in USERS_FIELD.findall(text) for name in match}
    return {name for name in found if name.rpartition(".")[2].strip("-") not in own and not is_placeholder(name)}


def is_placeholder(name: str) -> bool:
    """Whether a name stands for others, as `--FIELD`, or is an option of TRL or verl, which is answered."""
    return name.isupper() or "*" in name or answer_of(name.removeprefix("--")) is not None


# Commands


def absent_words(command: str) -> Iterator[str]:
    """The command, if there is none of this name, its options, and the keys in their values. `*` is any command."""
    words = shlex.split(re.split(r" [|>&] | \|\| ", command)[0].replace("'s ", " "), comments=True)
    named = words[1] if len(words) > 1 else "*"
    if named not in {*commands(), "*"} and named.isalpha() and named.islower():
        yield f"groupwise {named}"
    for word, value in zip(words[2:], [*words[3:], ""]):
        option = word.partition("=")[0].rstrip(",.")
        path = option.removeprefix("--")
        if not option.startswith("--") or option == "--" or option in options_of(named):
            continue
        if not (named in (*parser()[1], "*") and is_key(path)):
            yield option
        elif value[:1] in "[{" or path in NAMED:
            yield from absent_keys(f"{path} = {value if value[:1] in '[{' else json.dumps(value)}")


@cache
def commands() -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (table,) = (action for action in parser()[0]._actions if isinstance(action, argparse._SubParsersAction))
    return table.choices


@cache
def options_of(command: str) -> set[str]:
    """The options of a command; of all commands for a name that is none."""
    chosen = [commands()[command]] if command in commands() else commands().values()
    return {option for one in chosen for action in one._actions for option in action.option_strings}


# Keys of TOML


def is_key(path: str) -> bool:
    """Whether a recipe may have a value at a dotted path, with the components that fit there."""
    if KEYS_OF_USERS.fullmatch(path.removeprefix("phase.")):
        return True
    words = [word for word in path.removeprefix("phase.").split(".") if not re.fullmatch(r"\d+|[A-Z]+", word)]
    for end in range(len(words), 0, -1):
        start = ".".join(words[:end])
        if start in {*recipe_fields(), *SECTIONS, *SECOND_NAMES}:
            open_table = start not in SECTIONS or start.endswith(OPEN_SECTIONS)
            return end == len(words) or (open_table and all(word in constants() for word in words[end:]))
    return path in ("phase", "phase.name")  # a phase is a recipe with a name


@cache
def constants() -> set[str]:
    """All fields of components, tasks, verifiers and engines, and all arguments of methods."""
    classes = [registry.definition_of(part) for part in registry.parts().values()]
    names = {field.name for part in classes if is_dataclass(part) for field in fields(part)}
    return names | set(methods_with_argument()) | {"kind", "base"}


@cache
def last_words() -> set[str]:
    """The names by which prose may call a field: its last word, or a declaration of a class."""
    declared = {
        name
        for part in registry.parts().values()
        for cls in getattr(registry.definition_of(part), "__mro__", ())
        for name in vars(cls).get("__annotations__", {})
    }
    return {*constants(), *declared, *(path.rpartition(".")[2] for path in recipe_fields())}


def absent_keys(text: str) -> Iterator[str]:
    """The keys of a text of TOML that a recipe cannot have. A text that is no TOML has none."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    if len(table) == 1 and (key := next(iter(table))) in last_words() - set(
        NAMED
    ):  # by its last word: `placement = "colocated"`
        ends = [path for path in (*recipe_fields(), *SECTIONS) if f".{path}".endswith(f".{key}")]
        yield from _absent(table[key], ends[0] if ends else key)
    elif not {"tflops", "memory_gib"} <= table.keys():  # else a file of machines
        is_method = all(f"method.{key}" in {*recipe_fields(), *SECTIONS} for key in table)  # as a method's page has it
        yield from _absent(table, "method" if is_method else "")


def _absent(value: Any, path: str) -> Iterator[str]:
    """The keys below a path. The keys of a table with a kind are the fields of its class, or of the recipe."""
    for table in value if isinstance(value, list) else [value]:
        if not isinstance(table, dict):
            continue
        kind = table.get("kind", "")
        part = registry.parts().get(kind) or registry.parts().get(class_name(kind))
        if kind.isalnum() and part is None:
            yield f"kind = {kind}"
        own = {field.name for field in fields(registry.definition_of(part))} if part else set[str]()
        for key, inner in table.items():
            at = f"{path}.{key}".removeprefix(".")
            if key in NAMED and isinstance(inner, str) and inner.isidentifier() and not is_named(key, inner):
                yield f"{key} = {inner}"
            if key not in own and not (at in recipe_fields() or key == "kind" if part else is_key(at)):
                yield at
            else:
                yield from _absent(inner, at)


def is_named(key: str, name: str) -> bool:
    """Whether a published method, or a packaged verifier, has this name. Names in capitals stand for others."""
    known = published_name(name) in method_files() if key == "method" else class_name(name) in registry.parts()
    return known or name.isupper()


# Calls of Python


def absent_arguments(code: str, *, names_are_fields: bool = False) -> Iterator[str]:
    """Names of `gw` in a text of Python that do not exist, and arguments that a call does not take.

    In prose names are fields: `EMA(decay, every)`.
    """
    try:
        tree = ast.parse(code.replace("...)", "_)"))
    except SyntaxError:
        return
    imported: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "gw" and not hasattr(groupwise, node.attr):
            yield f"gw.{node.attr}"
        if isinstance(node, ast.Call):
            yield from _wrong_arguments(node, imported, names_are_fields)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("groupwise."):
            names = [alias.name for alias in node.names]
            yield from _absent_imports(str(node.module), names)
            imported |= {name: getattr(import_module(str(node.module)), name, None) for name in names}


def _absent_imports(module: str, names: Sequence[str]) -> Iterator[str]:
    """The names that a module of the package lacks; the module itself, if there is none."""
    if find_spec(module) is None:
        yield module
    else:
        yield from (f"{module}.{name}" for name in names if not hasattr(import_module(module), name))


def _wrong_arguments(call: ast.Call, imported: Mapping[str, Any], names_are_fields: bool) -> Iterator[str]:
    """The arguments of a call that its function lacks. `imported` are objects of the package by their names."""
    name = ast.unparse(call.func).removeprefix("gw.")
    function = imported.get(name) or part_or_name(name)
    if not callable(function):
        return
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # an enumeration
        return
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for word in (keyword.arg for keyword in call.keywords if keyword.arg):
        is_setting = is_key(word) or word in constants() or name not in groupwise.__all__
        if word not in known and not (any_name and is_setting):
            yield f"{name}({word}=)"
    if names_are_fields and is_dataclass(function):
        words = [node.id for node in call.args if isinstance(node, ast.Name) and node.id.islower() and node.id != "_"]
        yield from (f"{name}({word})" for word in words if word not in known and part_or_name(word) is None)


def part_or_name(name: str) -> Any:
    """A component or a public object of `gw` by its name; None for another name."""
    if name in registry.parts():
        return registry.definition_of(registry.parts()[name])
    return getattr(groupwise, name, None) if name.isidentifier() else None


# Metrics


def is_absent_metric(span: str) -> bool:
    """Whether a code span has the form of a metric, and is none."""
    table, slash, rest = span.partition("/")
    tables = {name.partition("/")[0] for name in METRICS if "/" in name}
    has_form = slash and table in tables and re.fullmatch(r"[\w@/<>]*[\w>]", rest)
    return bool(has_form) and find_metric(span) is None
