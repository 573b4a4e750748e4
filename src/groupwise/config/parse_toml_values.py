"""Converts TOML data to typed values: fields by their types, components by their names. Collects all errors."""

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from functools import cache
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import SWITCHES, method_suggestion, problem, suggestion, unknown_keys
from groupwise.config.registry import (
    UNLOADED,
    UNREAD,
    UnloadedPart,
    closest_parts,
    definition_of,
    fits,
    fitting_names,
    methods,
    socket_of,
)
from groupwise.config.toml import BARE, CommandLineValue, base_of, default_method
from groupwise.config.trl_and_verl_names import method_fix, other_value_fix, verifier_fix
from groupwise.config.user_code import UserCode
from groupwise.config.wrong_value_advice import component_advice, example_line, list_advice, table_advice
from groupwise.core import InvalidValue, Usage, class_name, part_named, plain_name
from groupwise.data import TaskSettings, VerifierSettings, name_of
from groupwise.methods import Method
from groupwise.methods.families import published_name
from groupwise.tasks import task_table
from groupwise.verifiers import Function
from groupwise.verifiers.reward_argument_of_verifier import python_reward, table_of
from groupwise.verifiers.user_function import functions_in


@dataclass(frozen=True, slots=True)
class ValueParser:
    """Converts TOML data to typed values. Errors are collected in `errors`, and reading continues.

    Each method returns MISSING for invalid data. `where` is the dotted path for messages. Without `user_code`, code in
    the user's files becomes an `UnloadedPart`.
    """

    user_code: UserCode | None = None
    errors: list[Usage] = field(default_factory=list)

    def problem(self, where: str, what: str, fix: str = "") -> Any:
        """Record one error, and return MISSING. Without a `fix`, the error refers to `groupwise help`."""
        self.errors.append(problem(where, what, fix))
        return MISSING

    def value(self, data: Any, hint: Any, current: Any, where: str) -> Any:
        """Convert data to the type `hint` of a field; `current` is the field's value so far."""
        if isinstance(data, dict) and BARE in data:
            return self.value_beside_fields(data, hint, current, where)
        if (
            isinstance(data, CommandLineValue)
            and TaskSettings in (hint, *get_args(hint))
            and not isinstance(data.plain, dict)
        ):
            data = data.plain if isinstance(data.plain, str) else str(data)  # a file may have the name 2024
        if isinstance(data, CommandLineValue) and (hint is not str or data.startswith(('"', "'"))):
            data = data.plain
            if get_origin(hint) is tuple and not isinstance(data, list | dict) and ... in get_args(hint):
                data = [data]
        if hint in (bool, int, float, str):
            return self.scalar(data, hint, where)
        if hint is Any and isinstance(data, int | float):
            return data
        match get_origin(hint):
            case origin if origin in (Union, UnionType):
                return self.union(data, get_args(hint), current, where)
            case origin if origin is Literal:
                if data in get_args(hint) and isinstance(data, str):
                    return data
                fix = other_value_fix(where.removeprefix("recipe."), data)
                return self.problem(where, f"{data!r} is not one of {', '.join(get_args(hint))}", fix)
            case origin if origin is tuple:
                return self.sequence(data, get_args(hint), current, where)
        part = self.part(data, hint, current, where)
        return UNREAD[hint](self.errors[-1]) if part is MISSING and hint in UNREAD else part

    def value_beside_fields(self, data: Mapping[str, Any], hint: Any, current: Any, where: str) -> Any:
        """Record the error for a number or `none` with fields set beside it: its own one, or that it has no fields."""
        known, bare = len(self.errors), data[BARE]
        self.value(bare, hint, current, where)
        if len(self.errors) == known:
            path = where.removeprefix("recipe.")
            names = [f"{path}.{name}" for name in data if name != BARE]
            what = f"{bare} has no fields, and {' and '.join(names)} {'is' if len(names) == 1 else 'are'} set, too"
            return self.problem(where, what, f"leave out {path}, or {' and '.join(names)}")
        return MISSING

    def scalar(self, data: Any, hint: type, where: str) -> Any:
        """Convert data to a bool, int, float or string. A whole number is accepted for a float."""
        kind = bool if isinstance(data, bool) else type(data)
        if kind is hint or (kind is CommandLineValue and hint is str):
            return hint(data)
        if hint is float and kind is int:
            return float(data)
        return self.problem(where, f"{_describe(data)}; expected {EXPECTED[hint]}", example_line(where, hint))

    def union(self, data: Any, arms: tuple[Any, ...], current: Any, where: str) -> Any:
        """Convert data to the first of several types that accepts it; `"none"` is None if the field may be None."""
        if NoneType in arms and data == "none":
            return None
        types = [arm for arm in arms if arm is not NoneType]
        if len(types) == 1:  # the problem of the one type is more precise than "expected ..."
            return self.value(data, types[0], current, where)
        for arm in types:
            trial = ValueParser(self.user_code)
            value = trial.value(data, arm, current, where)
            if not trial.errors:
                return value
        return self.problem(where, f"{_describe(data)}; expected {' or '.join(map(expected, types))}")

    def sequence(self, data: Any, args: Sequence[Any], current: Any, where: str) -> Any:
        """Convert a table to a tuple of pairs, or a list to a tuple. A table with numbers as keys replaces elements."""
        element = args[0]
        if get_origin(element) is tuple and get_args(element)[0] is str:
            return self.pairs(data, get_args(element)[1], current, where)
        hints = [element] * max(len(data), 1) if ... in args and isinstance(data, list) else list(args)
        if isinstance(data, dict) and current is not MISSING and data:
            return self.elements(data, args, current, where)
        if not isinstance(data, list) or (... not in args and len(data) != len(args)):
            what = f"{_describe(data)}; expected a list" + ("" if ... in args else f" of {len(args)}")
            return self.problem(where, what, list_advice(where, data) if ... in args else "")
        values = [self.value(x, h, MISSING, f"{where}.{i}") for i, (x, h) in enumerate(zip(data, hints))]
        return MISSING if any(v is MISSING for v in values) else tuple(values)

    def pairs(self, data: Any, hint: Any, current: Any, where: str) -> Any:
        """Convert a table to (name, value) pairs, merged into the current ones. An empty table removes all."""
        if not isinstance(data, dict):
            return self.problem(where, f'{_describe(data)}; expected a table such as {{ name = "Part" }}')
        if not data:
            return ()
        old = dict(current) if current is not MISSING else {}
        new = {name: self.value(x, hint, old.get(name, MISSING), f"{where}.{name}") for name, x in data.items()}
        return MISSING if MISSING in new.values() else tuple({**old, **new}.items())

    def elements(self, data: Mapping[str, Any], args: Sequence[Any], current: Sequence[Any], where: str) -> Any:
        """Replace elements of the current tuple by the values of a table with indices as keys."""
        values = list(current)
        for key, x in data.items():
            if not key.isdecimal() or int(key) >= len(values):
                return self.problem(where, f"no element {key!r}", f"it has {len(values)}; or give a whole list")
            i = int(key)
            values[i] = self.value(x, args[0] if ... in args else args[i], values[i], f"{where}.{i}")
        return MISSING if any(v is MISSING for v in values) else tuple(values)

    def part(self, data: Any, hint: Any, current: Any, where: str) -> Any:
        """Build a component from its name or a table. A table without `kind` changes constants of the current one."""
        if shorthand := getattr(hint, "shorthand", ""):
            data = {shorthand: data} if isinstance(data, str) else data
            if isinstance(data, dict) and "kind" in data:  # a text, and constants beside it from the command line
                data = {shorthand: data["kind"], **{k: v for k, v in data.items() if k != "kind"}}
        if not isinstance(data, dict) and is_table(hint):
            return self.problem(where, f"{_describe(data)}; expected a table", self.table_fix(where, data, hint))
        if hint is TaskSettings and (data := self.task(data, where)) is MISSING:
            return MISSING
        if isinstance(data, str):
            data = {"base" if hint is Method else "kind": data}
        if not isinstance(data, dict):
            what = f"{_describe(data)}; expected the name of a component or a table"
            return self.problem(where, what, self.table_fix(where, data, hint))
        names = ("kind", "base") if hint is Method else ("kind",)
        constants = {k: v for k, v in data.items() if k not in names}
        if hint is Method and (base := data.get("base", data.get("kind"))) is not None:
            function = self.method_function(base, where)
            if function is MISSING:
                return MISSING
            arguments, changes = self.arguments(function, constants, where)
            method = MISSING if arguments is MISSING else self.method(function, str(base), arguments, where)
            return MISSING if method is MISSING else self.table(Method, changes, method, where, own_arguments(function))
        if "kind" in data:
            return self.new_part(data["kind"], constants, hint, where)
        if isinstance(current, UnloadedPart):
            return type(current)(current.part, tuple({**dict(current.arguments), **constants}.items()))
        if is_dataclass(current) and current is not MISSING:
            return self.table(type(current), constants, current, where)
        if is_dataclass(hint) and isinstance(hint, type):
            return self.table(hint, constants, MISSING, where)
        return self.problem(where, f"the table has no kind; {suggestion('', fitting_names(hint))}", 'add kind = "..."')

    def table_fix(self, where: str, data: Any, hint: Any) -> str:
        """What to write for a value in place of a table."""
        value = data.plain if isinstance(data, CommandLineValue) else data
        return table_advice(where, value, hint, fields_by_type(hint))

    def method_function(self, name: Any, where: str) -> Any:
        """The function of a published method by name, or a user's function such as `my_file:mine`."""
        if not (isinstance(name, str) and ":" in name):
            if (published := published_name(str(name))) in methods():
                return methods()[published]
            fix = method_fix(str(name), methods())
            return self.problem(where, f"unknown method {name!r}; {method_suggestion(str(name), methods())}", fix)
        function = self.user_part(name, where)
        if isinstance(function, UnloadedPart):
            file = name.partition(":")[0]
            return self.problem(where, f"{name!r} is code in a file that is not loaded", f"add --use {file}.py")
        return function

    def arguments(self, function: Any, data: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
        """Split a method's table: arguments of its function that are no fields of `Method`, and changes of fields.

        The arguments are MISSING if one is invalid.
        """
        own = own_arguments(function)
        values = {
            key: self.value(item, own[key].annotation, own[key].default, f"{where}.{key}")
            for key, item in data.items()
            if key in own
        }
        changes = {key: item for key, item in data.items() if key not in own}
        return MISSING if MISSING in values.values() else values, changes

    def method(self, function: Any, name: str, arguments: Mapping[str, Any], where: str) -> Any:
        """The method that a function returns for these arguments."""
        try:
            method = function(**arguments)
        except InvalidValue as error:
            return self.problem(where, error.what, error.fix)
        except Exception as error:  # a user's function may raise anything
            return self.problem(where, f"{name}() raises {type(error).__name__}: {error}")
        if isinstance(method, Method):
            return method
        return self.problem(where, f"{name}() returns {type(method).__name__}, not a Method")

    def new_part(self, name: Any, constants: Mapping[str, Any], hint: Any, where: str) -> Any:
        """The component with that name, built with constants if it is a class. It must fit the Protocol `hint`."""
        part = self.lookup(name, hint, where)
        if isinstance(part, UnloadedPart):
            return UNLOADED.get(hint, UnloadedPart)(part.part, tuple(constants.items()))
        if part is MISSING:
            return MISSING
        if hint is VerifierSettings and ":" in name and callable(part) and not isinstance(part, type):
            file, _, function = name.rpartition(":")
            part, constants = Function, {"name": function, "file": f"{file.removesuffix('.py')}.py", **constants}
        if not isinstance(part, type):
            if constants:
                return self.problem(where, f"{name} has no constants, so no {next(iter(constants))!r}")
            return self.fitting(part, hint, where)
        in_package = part.__module__.startswith("groupwise.")
        if in_package and part is not hint and self.fitting(part, hint, where) is MISSING:
            return MISSING
        if not is_dataclass(part):
            return self.problem(where, f"{name} is not a dataclass", "write @dataclass(frozen=True) above it")
        instance = self.table(part, constants, MISSING, where)
        return instance if in_package or instance is MISSING else self.fitting(instance, hint, where)

    def table(self, cls: Any, data: Mapping[str, Any], current: Any, where: str, others: Iterable[str] = ()) -> Any:
        """Build a dataclass from a TOML table; absent fields keep the values of `current` or the defaults.

        `others` are names that the table may also have, for the message about an unknown one.
        """
        known, hints = {f.name: f for f in fields(cls)}, hints_of(cls)
        values = {name: getattr(current, name) for name in known} if current is not MISSING else {}
        for key, item in data.items():
            if key in SWITCHES and key not in known:
                self.problem(where, f"{key} is not a field", f"use the command-line option {SWITCHES[key]}")
                continue
            if key not in known:
                method = base_of(data) if cls is Recipe else ""
                self.errors.extend(unknown_keys(where, cls.__name__, key, item, (*others, *known), method))
                continue
            value = self.value(item, hints[key], values.get(key, default(known[key])), f"{where}.{key}")
            values[key] = value if value is not MISSING else values.get(key, MISSING)
        values = {name: value for name, value in values.items() if value is not MISSING}
        missing = [name for name, f in known.items() if name not in values and default(f) is MISSING]
        if missing:
            for name in missing:
                if name not in data:  # an invalid value has a problem already
                    self.problem(where, f"{cls.__name__} needs {name}", f"add {name} = {_example(hints[name])}")
            return MISSING
        try:
            return cls(**values)
        except InvalidValue as error:
            return self.problem(where, error.what, error.fix)
        except ValueError as error:  # of a class in the user's file: a second line is the fix
            return self.problem(where, *str(error).split("\n", 1))

    def lookup(self, name: Any, hint: Any, where: str) -> Any:
        """The component with a public name, or one from a user's file, such as `my_file:MyClip`."""
        if not isinstance(name, str):
            return self.problem(where, f"kind: {_describe(name)}; expected the name of a component")
        if hint is VerifierSettings:
            return self.verifier(name, where)
        if ":" in name:
            return self.user_part(name, where)
        part = part_named(name)
        if part is None:
            what = f"unknown component {name!r}; similar: {', '.join(closest_parts(name, hint))}"
            return self.problem(where, what, component_advice(where, name, hint, fields_by_type(hint)))
        return part

    def task(self, data: Any, where: str) -> Any:
        """The table of a task. A text is short for one, and so is the name of a task as its `kind`."""
        try:
            if isinstance(data, str):
                return task_table(data)
            if isinstance(data, dict) and isinstance(kind := data.get("kind"), str):
                return {**data, **task_table(kind, only_names=True)}
        except Usage as error:
            return self.problem(where, error.what, error.fix)
        return data

    def verifier(self, name: str, where: str) -> Any:
        """The class of a verifier by its name, also in lower case (`math_dapo`), or an object from a user's file."""
        if fix := verifier_fix(name):
            return self.problem(where, f"{name!r} is not how a verifier is written", fix)
        if ":" in name:
            return self.user_part(name, where)
        known = class_name(name) if class_name(name) in fitting_names(VerifierSettings) else name
        if (kind := part_named(known)) is not None:
            return kind
        return self.problem(where, f"no verifier is called {name!r}", verifier_suggestion(name))

    def check_user_names(self, recipe: Recipe) -> None:
        """Record an error for each user's function, or environment like `my_file:MyEnvironment`, that is not loaded."""
        verifiers = {f"recipe.extra_tasks.{i}.verifier": also.verifier for i, also in enumerate(recipe.extra_tasks)}
        verifiers["recipe.verifier"] = recipe.verifier
        for where, kind in verifiers.items():
            functions = functions_in(kind)
            missing = {
                f.name
                for f in functions
                if not f.file and self.user_code and f.name not in self.user_code.functions_in_memory
            }
            if missing:
                what = f"{' and '.join(sorted(missing))} was a function in memory of the program that started this run"
                reward = python_reward(table_of(kind))
                fix = f"use the library: gw.resume(run, reward={reward}) or gw.evaluate(run, reward={reward})"
                self.problem(where, what, f"{fix};\nor name another verifier: --verifier NAME")
            for user_name in dict.fromkeys(f"{f.file}:{f.name}" for f in functions if f.file and not missing):
                self.user_part(user_name, where)
        if ":" in recipe.environment:
            self.user_part(recipe.environment, "recipe.environment")
        if (agent := recipe.agent) and ":" in agent.file:
            self.user_part(agent.file, "recipe.agent.file")
        elif agent and agent.file and self.user_code and agent.file not in self.user_code.functions_in_memory:
            fix = (
                'name a function of a file: agent = "my_agent.py:agent"\n'
                "or continue the run of a program that passed a function: gw.resume(run, agent=agent)"
            )
            self.problem("recipe.agent.file", f"{agent.file!r} is an agent without a file", fix)

    def user_part(self, name: str, where: str) -> Any:
        """The object that `my_file:MyClip` or `my_file.py:MyClip` refers to. Without `user_code`, an `UnloadedPart`."""
        file, _, attribute = name.rpartition(":")
        stem = Path(file).name.removesuffix(".py")
        if self.user_code is None:
            return UnloadedPart(f"{stem}:{attribute}")
        if file.endswith(".py") and stem not in self.user_code.modules:
            fix = f"if you trust the file, add --use {file} to the command"
            return self.problem(where, f"{name!r} is code in a file that is not loaded", fix)
        try:
            return self.user_code.find(f"{stem}:{attribute}")
        except Usage as error:
            return self.problem(where, error.what, error.fix)

    def fitting(self, part: Any, hint: Any, where: str) -> Any:
        """Return the component if it implements the Protocol `hint` (see `fits`); else record an error."""
        if not isinstance(hint, type) or fits(part, hint):
            return part
        what = f"{part.__name__ if isinstance(part, type) else name_of(part)} is not {_article(hint.__name__)}"
        use = f"use one of {', '.join(fitting_names(hint))}"
        if isfunction(part) and socket_of(part) is None:
            return self.problem(where, what, f"write @groupwise.{hint.__name__.lower()} above the function; or {use}")
        home = definition_of(part)
        if isinstance(home, type) and issubclass(hint, ABC) and not home.__module__.startswith("groupwise."):
            base = f"from {front_door(hint)} import {hint.__name__}"
            return self.problem(where, what, f"write {base} in its file, and class {home.__name__}({hint.__name__})")
        return self.problem(where, what, use)


def front_door(socket: type) -> str:
    """The package that users import a socket from.

    >>> front_door(VerifierSettings)
    'groupwise.data'
    """
    return ".".join(socket.__module__.split(".")[:2])


def verifier_suggestion(name: str) -> str:
    """The fix for an unknown name of a verifier: a near name, or else all of them and how a user names a function."""
    near = suggestion(plain_name(name), map(plain_name, fitting_names(VerifierSettings)))
    if near.startswith("did you mean"):
        return near
    return f"{near}\nfor your own function, write my_file:grade and add --use my_file.py"


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name."""
    return get_type_hints(cls)


def fields_by_type(hint: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass; none for another type."""
    return hints_of(hint) if isinstance(hint, type) and is_dataclass(hint) else {}


def own_arguments(function: Any) -> dict[str, Parameter]:
    """The arguments of a method's function that have a type and are no fields of `Method`, by name.

    >>> from groupwise.methods import sage_hint
    >>> list(own_arguments(sage_hint))
    ['levels', 'form', 'least', 'most']
    """
    known, hints = hints_of(Method), get_type_hints(function) if isfunction(function) else {}
    parameters = signature(function).parameters if hints else {}
    return {name: p.replace(annotation=hints[name]) for name, p in parameters.items() if name in hints.keys() - known}


def default(f: Field[Any]) -> Any:
    """The default value of a field; MISSING if it has none."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
KINDS = {bool: "a boolean", int: "a whole number", float: "a number", list: "a list", dict: "a table"}
KINDS |= {date: "a date", time: "a time", datetime: "a date", NoneType: "no value"}


def is_table(hint: Any) -> bool:
    """Whether a type is a table of a recipe, such as `Machine`: a dataclass, but not a component or a method."""
    is_class = isinstance(hint, type) and is_dataclass(hint)
    return is_class and hint is not Method and part_named(hint.__name__) is None


def _describe(data: Any) -> str:
    return f"{str(data) if isinstance(data, CommandLineValue) else data!r} is {KINDS.get(type(data), 'a string')}"


def expected(arm: Any) -> str:
    """The name of one type of a union, for a message."""
    return " or ".join(get_args(arm)) if get_origin(arm) is Literal else EXPECTED.get(arm, str(arm))


def _example(hint: Any) -> str:
    return f'"{default_method()}"' if hint is Method else "..."


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
