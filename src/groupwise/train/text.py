"""Recipes and methods as text. TOML and flags are views of dataclass fields: read, overridden, written and diffed here.

A part is named by its public name in its room: `token_mean`, or `{ kind = "Clip", low = 0.2 }`; a table without `kind`
changes constants in place; `base` names a published method. Code of one's own is `kind = "my_file:MyClip"`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tomli_w

from groupwise.data import Usage, name_of
from groupwise.methods import Method
from groupwise.tasks import own_names
from groupwise.train.names import Named, fits, fitting_names, methods, near, near_parts, parts, public_name
from groupwise.train.recipe import Recipe
from groupwise.train.use import Use

T = TypeVar("T")


class Typed(str):
    """A value typed on a command line: what it means depends on the field it is for."""

    __slots__ = ()

    @property
    def plain(self) -> Any:
        """The value as TOML reads it; as a string where TOML cannot."""
        try:
            read = tomllib.loads(f"x = {self}")
        except tomllib.TOMLDecodeError:
            return str(self)
        return read["x"] if len(read) == 1 else str(self)


# Reading


def read_recipe(source: str | Path, overrides: Sequence[tuple[str, str]] = (), use: Use | None = None) -> Recipe:
    """The recipe of a TOML file, or of TOML text (a string with a newline or `=`), with dotted overrides.

    Raises `Usage` that tells everything that is wrong. `use` holds the files that a recipe may name code from.

    >>> recipe = read_recipe("prompts = 8\\nmethod.group_size = 4", [("method.objective.surrogate.high", "0.3")])
    >>> recipe.prompts, recipe.method.group_size, recipe.method.objective.surrogate.high
    (8, 4, 0.3)
    """
    recipe, problems = attempt(source, overrides, use or Use())
    if problems or recipe is None:
        raise together(problems)
    return recipe


def read(kind: type[T], source: str | Path) -> T:
    """A value of any frozen dataclass from its TOML; `Usage` tells everything that is wrong."""
    reading = Reading(Use())
    value = reading.table(kind, raw(source), MISSING, kind.__name__)
    if reading.problems:
        raise together(reading.problems)
    return value


def read_over(value: T, where: str, overrides: Sequence[tuple[str, str]]) -> T:
    """A dataclass with some of its constants changed; `Usage` tells everything that is wrong."""
    reading, data = Reading(Use()), {}
    for path, text in overrides:
        put(data, path, Typed(text))
    changed = reading.table(type(value), data, value, where)
    if reading.problems:
        raise together(reading.problems)
    return changed


def attempt(
    source: str | Path,
    overrides: Sequence[tuple[str, str]] = (),
    use: Use | None = None,
    *,
    only: Sequence[str] | None = None,
) -> tuple[Recipe | None, list[Usage]]:
    """A recipe, and all that is wrong with it. Without `use`, code of one's own is `Named` and nothing is imported.

    `only` reads some of its fields, under a plain method.
    """
    reading = Reading(use)
    try:
        data = raw(source)
        for path, value in overrides:
            put(data, path, Typed(value))
    except Usage as problem:
        return None, [problem]
    if only is not None:
        data = {"method": {}, **{name: data[name] for name in only if name in data}}
    recipe = reading.table(Recipe, data, MISSING, "recipe")
    if recipe is not MISSING:
        if use is not None:
            reading.graders(recipe)
        try:
            for iteration in range(max(recipe.iterations, 1)) if recipe.method.schedules else ():
                at(recipe.method, iteration)
        except Usage as problem:
            reading.problems.append(problem)
    return (None if recipe is MISSING else recipe), reading.problems


def base_of(source: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> str:
    """The published method that a recipe begins with; empty where it states every part itself.

    >>> base_of("method = 'dapo'"), base_of("method.group_size = 4")
    ('dapo', '')
    """
    data = raw(source)
    for path, value in overrides:
        put(data, path, Typed(value))
    method = data.get("method", "")
    return str(method.get("base", "")) if isinstance(method, dict) else str(method)


def override(value: T, path: str, text: Any, use: Use | None = None) -> T:
    """The value with one field changed: `override(method, "objective.surrogate.high", "0.35")`.

    The text names a part, or is TOML. Raises `Usage`.
    """
    data: dict[str, Any] = {}
    put(data, path, Typed(text) if isinstance(text, str) else text)
    reading = Reading(use or Use())
    changed = reading.table(type(value), data, value, type(value).__name__.lower())
    if reading.problems:
        raise together(reading.problems)
    return changed


def at(method: Method, iteration: int) -> Method:
    """The method with its schedules' numbers for this iteration written in."""
    for path, schedule in method.schedules:
        number = schedule(iteration)
        method = override(method, path, int(number) if float(number).is_integer() else number)
    return method


def raw(source: str | Path) -> dict[str, Any]:
    """TOML as dictionaries."""
    is_text = isinstance(source, str) and ("\n" in source or "=" in source or not source)
    where = "recipe" if is_text else str(source)
    try:
        return tomllib.loads(str(source) if is_text else Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise Usage(f"{where} cannot be read", evidence=error.strerror or str(error), fix="name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Usage(f"{where} is not TOML", evidence=str(error), fix="mend that line") from error


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Write a value into what was read, before it is understood: one building sees all overrides together."""
    keys = keys_of(path)
    here: Any = data
    for key, following in pairwise(keys):
        place = _place(here, key, path)
        inner = here[place] if isinstance(here, list) else here.get(place, {})
        inner = inner.plain if isinstance(inner, Typed) else inner
        if isinstance(inner, str):
            inner = {"base" if inner in methods() else "kind": inner}
        if not isinstance(inner, dict | list) or following == "kind":  # another part has other constants
            inner = {}
        here[place] = inner
        here = inner
    here[_place(here, keys[-1], path)] = value


def keys_of(path: str) -> list[str]:
    """The keys of a dotted path; one with dots inside stands in quotation marks, as in TOML."""
    try:
        inner: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        raise Usage(f"{path!r} is no path to a field", fix="write it as in method.objective.surrogate.high") from None
    keys = []
    while isinstance(inner, dict) and len(inner) == 1:
        ((key, inner),) = inner.items()
        keys.append(key)
    return keys


def _place(here: Any, key: str, path: str) -> Any:
    """Where a key leads: in a list to an element that is there."""
    if not isinstance(here, list):
        return key
    if not key.isdecimal() or int(key) >= len(here):
        fix = f"its elements are 0 to {len(here) - 1}, or give a whole list"
        raise Usage(f"{path}: there is no element {key!r}", fix=fix)
    return int(key)


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of raw data. What cannot be understood is told in `problems`, and the reading goes on."""

    use: Use | None = None
    problems: list[Usage] = field(default_factory=list)

    def wrong(self, where: str, what: str, fix: str = "") -> Any:
        self.problems.append(Usage(f"{where}: {what}", fix=fix))
        return MISSING

    def value(self, data: Any, hint: Any, current: Any, where: str) -> Any:
        """What raw data mean for a field of this type whose value is now `current`."""
        if isinstance(data, Typed) and (hint is not str or data.startswith(('"', "'"))):
            data = data.plain
            if get_origin(hint) is tuple and not isinstance(data, list | dict) and ... in get_args(hint):
                data = [data]
        if hint in (bool, int, float, str):
            return self.scalar(data, hint, where)
        match get_origin(hint):
            case origin if origin in (Union, UnionType):
                return self.either(data, get_args(hint), current, where)
            case origin if origin is Literal:
                if data in get_args(hint) and isinstance(data, str):
                    return data
                return self.wrong(where, f"{data!r} is not one of {', '.join(get_args(hint))}")
            case origin if origin is tuple:
                return self.several(data, get_args(hint), current, where)
        return self.part(data, hint, current, where)

    def scalar(self, data: Any, hint: type, where: str) -> Any:
        kind = bool if isinstance(data, bool) else type(data)
        if kind is hint or (kind is Typed and hint is str):
            return hint(data)
        if hint is float and kind is int:
            return float(data)
        return self.wrong(where, f"{_seen(data)}; expected {EXPECTED[hint]}")

    def either(self, data: Any, arms: tuple[Any, ...], current: Any, where: str) -> Any:
        if NoneType in arms and data == "none":
            return None
        wanted = [arm for arm in arms if arm is not NoneType]
        if len(wanted) == 1:  # whose own words tell more than a list of what it may be
            return self.value(data, wanted[0], current, where)
        for arm in wanted:
            trial = Reading(self.use)
            value = trial.value(data, arm, current, where)
            if not trial.problems:
                return value
        return self.wrong(where, f"{_seen(data)}; expected {' or '.join(map(expected, wanted))}")

    def several(self, data: Any, args: tuple[Any, ...], current: Any, where: str) -> Any:
        """A tuple: of pairs from a table, of elements from a list; a table of numbers changes elements in place."""
        one = args[0]
        if get_origin(one) is tuple and get_args(one)[0] is str:
            if not isinstance(data, dict):
                return self.wrong(where, f'{_seen(data)}; expected a table such as {{ name = "Part" }}')
            old = dict(current) if current is not MISSING else {}
            pairs = {k: self.value(v, get_args(one)[1], old.get(k, MISSING), f"{where}.{k}") for k, v in data.items()}
            return MISSING if MISSING in pairs.values() else tuple(pairs.items())
        hints = [one] * max(len(data), 1) if ... in args and isinstance(data, list) else list(args)
        if isinstance(data, dict) and current is not MISSING and data:
            return self.elements(data, args, current, where)
        if not isinstance(data, list) or (... not in args and len(data) != len(args)):
            return self.wrong(where, f"{_seen(data)}; expected a list" + ("" if ... in args else f" of {len(args)}"))
        values = [self.value(x, h, MISSING, f"{where}.{i}") for i, (x, h) in enumerate(zip(data, hints))]
        return MISSING if any(v is MISSING for v in values) else tuple(values)

    def elements(self, data: Mapping[str, Any], args: tuple[Any, ...], current: Sequence[Any], where: str) -> Any:
        values = list(current)
        for key, x in data.items():
            if not key.isdecimal() or int(key) >= len(values):
                return self.wrong(where, f"there is no element {key!r}", f"it has {len(values)}; or give a whole list")
            i = int(key)
            values[i] = self.value(x, args[0] if ... in args else args[i], values[i], f"{where}.{i}")
        return MISSING if any(v is MISSING for v in values) else tuple(values)

    def part(self, data: Any, hint: Any, current: Any, where: str) -> Any:
        """A part by its public name, by a table that names it, or the current one with constants changed."""
        if isinstance(data, str):
            data = {"base" if hint is Method else "kind": data}
        if not isinstance(data, dict):
            return self.wrong(where, f"{_seen(data)}; expected the name of a part or a table")
        constants = {k: v for k, v in data.items() if k not in ("kind", "base")}
        if hint is Method and "base" in data:
            if data["base"] not in methods():
                return self.wrong(where, f"no method is called {data['base']!r}; {near(data['base'], methods())}")
            return self.table(Method, constants, methods()[data["base"]](), where)
        if "kind" in data:
            named = self.named(data["kind"], hint, where)
            if named is MISSING or isinstance(named, Named):
                return Named(named.part, tuple(constants.items())) if isinstance(named, Named) else MISSING
            if not isinstance(named, type):
                if constants:
                    return self.wrong(where, f"{data['kind']} has no constants, so no {next(iter(constants))!r}")
                return self.fitting(named, hint, where)
            ours = named.__module__.startswith("groupwise.")
            if ours and named is not hint and self.fitting(named, hint, where) is MISSING:
                return MISSING
            if not is_dataclass(named):
                return self.wrong(where, f"{data['kind']} is no dataclass", "write @dataclass(frozen=True) above it")
            made = self.table(named, constants, MISSING, where)
            return made if ours or made is MISSING else self.fitting(made, hint, where)
        if isinstance(current, Named):
            return Named(current.part, tuple({**dict(current.constants), **constants}.items()))
        if is_dataclass(current) and current is not MISSING:
            return self.table(type(current), constants, current, where)
        if is_dataclass(hint) and isinstance(hint, type):
            return self.table(hint, constants, MISSING, where)
        return self.wrong(where, f"the table names no part; {near('', fitting_names(hint))}", 'say kind = "..."')

    def table(self, cls: Any, data: Mapping[str, Any], current: Any, where: str) -> Any:
        """A dataclass from constants, over those of `current` or over its defaults."""
        known, hints = {f.name: f for f in fields(cls)}, hints_of(cls)
        values = {n: getattr(current, n) for n in known} if current is not MISSING else {}
        for key, given in data.items():
            if key not in known:
                self.wrong(where, f"{cls.__name__} has no field {key!r}; {near(key, known)}")
                continue
            value = self.value(given, hints[key], values.get(key, default(known[key])), f"{where}.{key}")
            values[key] = value if value is not MISSING else values.get(key, MISSING)
        values = {n: v for n, v in values.items() if v is not MISSING}
        absent = [n for n, f in known.items() if n not in values and default(f) is MISSING]
        if absent:
            for n in absent:
                if n not in data:  # else its own problem was told
                    self.wrong(where, f"{cls.__name__} needs {n}", f"say {n} = {_example(hints[n])}")
            return MISSING
        try:
            return cls(**values)
        except ValueError as error:
            return self.wrong(where, *str(error).split("\n", 1))  # after a line end it may say what to do

    def named(self, name: Any, hint: Any, where: str) -> Any:
        if not isinstance(name, str):
            return self.wrong(where, f"kind: {_seen(name)}; expected the name of a part")
        if ":" in name:
            return self.foreign(name, where)
        part = parts().get(name, MISSING)
        if part is MISSING:
            return self.wrong(where, f"no part is called {name!r}; near it: {', '.join(near_parts(name, hint))}")
        return part

    def graders(self, recipe: Recipe) -> None:
        """Verifiers and an environment of one's own, which are names in a recipe, have to be there."""
        mixed = {f"recipe.also.{i}.verifier": also.verifier for i, also in enumerate(recipe.also)}
        top = {"recipe.verifier": recipe.verifier, "recipe.environment": recipe.environment}
        for where, name in {**top, **mixed}.items():
            for own in own_names(name):
                self.foreign(own, where)

    def foreign(self, name: str, where: str) -> Any:
        if self.use is None:
            return Named(name)
        try:
            return self.use.find(name)
        except Usage as problem:
            return self.wrong(where, problem.what, problem.fix)

    def fitting(self, part: Any, hint: Any, where: str) -> Any:
        """The part, if it has the methods of its socket and takes as many arguments."""
        if not isinstance(hint, type) or fits(part, hint):
            return part
        return self.wrong(
            where,
            f"{part.__name__ if isinstance(part, type) else name_of(part)} is no {hint.__name__}",
            f"take one of {', '.join(fitting_names(hint))}",
        )


@cache
def hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def default(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
SEEN = {bool: "a truth value", int: "a whole number", float: "a number", list: "a list", dict: "a table"}


def _seen(data: Any) -> str:
    return f"{str(data) if isinstance(data, Typed) else data!r} is {SEEN.get(type(data), 'a string')}"


def expected(arm: Any) -> str:
    """One of several things that a field may be, in a few words."""
    return " or ".join(get_args(arm)) if get_origin(arm) is Literal else EXPECTED.get(arm, str(arm))


def _example(hint: Any) -> str:
    return f'"{next(iter(methods()))}"' if hint is Method else "..."


def together(problems: Sequence[Usage]) -> Usage:
    """Several problems as one error."""
    if len(problems) == 1:
        return problems[0]
    return Usage(f"{len(problems)} things are wrong", evidence="\n".join(map(str, problems)))


# Writing


def write(value: Any) -> str:
    """The long form, which states every constant and reads back to an equal value."""
    return tomli_w.dumps(plain(value, type(value)))


def plain(value: Any, hint: Any) -> Any:
    """A value as TOML has it."""
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        args = get_args(hint) or (Any, ...)
        inner = args if ... not in args else args[:1] * len(value)
        if get_origin(args[0]) is tuple and get_args(args[0])[0] is str:
            return {name: plain(x, get_args(args[0])[1]) for name, x in value}
        return [plain(x, h) for x, h in zip(value, inner)]
    if isinstance(value, Named):
        return {"kind": value.part, **dict(value.constants)} if value.constants else value.part
    if is_dataclass(value) and type(value) in (hint, *get_args(hint)) and fields(value):
        return constants(value)
    name = public_name(value)
    return {"kind": name, **constants(value)} if is_dataclass(value) and fields(value) else name


def constants(value: Any) -> dict[str, Any]:
    return {f.name: plain(getattr(value, f.name), hints_of(type(value))[f.name]) for f in fields(value)}


# Comparing


def diff(a: Any, b: Any) -> list[str]:
    """What distinguishes two methods or two recipes, a line a field.

    >>> from dataclasses import replace
    >>> diff(Method(), replace(Method(), refill=3, minibatches=2))
    ['keep: everything -> everything (refill 3)', 'minibatches: 1 -> 2']
    """
    return differences(a, b, type(a), "")


def differences(a: Any, b: Any, hint: Any, where: str) -> list[str]:
    if a == b and type(a) is type(b):
        return []
    if type(a) is not type(b) or not is_dataclass(a) or isinstance(a, Named):
        return [f"{where}: {label(a, hint)} -> {label(b, hint)}"]
    lines, hints = [], hints_of(type(a))
    beside = {f.name: f.metadata["beside"] for f in fields(a) if "beside" in f.metadata}
    for f in fields(a):
        path = f"{where}.{f.name}" if where else f.name
        with_it = [g for g in fields(a) if beside.get(g.name) == f.name]
        if any(getattr(a, g.name) != getattr(b, g.name) for g in with_it):
            lines.append(f"{path}: {' -> '.join(_with(x, f, with_it, hints) for x in (a, b))}")
        elif f.name not in beside:
            lines += differences(getattr(a, f.name), getattr(b, f.name), hints[f.name], path)
    return lines


def _with(value: Any, f: Field[Any], others: list[Field[Any]], hints: Mapping[str, Any]) -> str:
    """A field with those that only mean something beside it, where they say something: `mixed_outcomes (refill 10)`."""
    words = [
        f"({g.name} {label(getattr(value, g.name), hints[g.name])})"
        for g in others
        if getattr(value, g.name) != g.default
    ]
    return " ".join([label(getattr(value, f.name), hints[f.name]), *words])


def label(value: Any, hint: Any = Any) -> str:
    """A value in a few words: `Overlong(buffer=4096, factor=1)`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int | str):
        return str(value) or '""'
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        one = get_args(hint)[0] if get_args(hint) else Any
        if get_origin(one) is tuple and get_args(one)[0] is str:
            pairs = [(name, x, type(x) is get_args(one)[1] and not fields(x)) for name, x in value]
            return ", ".join(name if implied else f"{name} {label(x)}" for name, x, implied in pairs)
        return ", ".join(label(x) for x in value)
    try:
        name = public_name(value)
    except Usage:
        name = name_of(value)
    given = value.constants if isinstance(value, Named) else [(f.name, getattr(value, f.name)) for f in _fields(value)]
    return f"{name}({', '.join(f'{n}={label(x)}' for n, x in given)})" if given else name


def _fields(value: Any) -> tuple[Field[Any], ...]:
    return fields(value) if is_dataclass(value) else ()
