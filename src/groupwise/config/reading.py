"""What raw data mean: a value for each field by its type, parts by their names, and every problem told at once."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from groupwise.config.recipe import Recipe
from groupwise.config.registry import Named, fits, fitting_names, methods, near, near_parts, parts
from groupwise.config.toml import Typed
from groupwise.config.user_code import Use
from groupwise.data import Usage, name_of
from groupwise.methods import Method
from groupwise.verifiers import own_names

SWITCHES = ("use", "unsafe_local_exec", "trust_remote_code", "key", "judge")
"""What runs code or reaches secrets stands on the command line, each time; a file from elsewhere cannot allow it."""


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
            if key in SWITCHES and key not in known:
                self.wrong(where, f"{key} is no field", f"say it on the command line: --{key.replace('_', '-')}")
                continue
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
