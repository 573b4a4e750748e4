"""Error messages about a recipe. Imports no torch, so that a misspelled option is reported at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from groupwise.config.answer_with_value import line_with_value
from groupwise.config.fields import SECOND_NAMES, SECTIONS, declared, home
from groupwise.config.trl_and_verl_names import ROWS, other_name_fix
from groupwise.core import Usage
from groupwise.methods.families import methods_with_argument
from groupwise.runs.phase_directories import KEY

SWITCHES: Mapping[str, str] = {
    "use": "--use",
    "unsafe_local_exec": "--unsafe-local-exec",
    "trust_remote_code": "--trust-remote-code",
    "key": "--key",
    "judge": "--judge",
    "engine_host": "--engine-host",
    "nccl": "--engine-nccl",
    "python": "--engine-python",
    "secret_file": "--engine-secret",
    "exchange": "--engine-exchange",
}
"""Options that run code, read secrets or send data, by the names that a recipe may try. No recipe can set them."""
REPLACEABLE = ("engine",)
"""Tables whose fields depend on a class that may be in the user's file, so they are unknown before it is loaded."""
HELP = "groupwise help FIELD explains a field of a recipe"


def problem(where: str, what: str, fix: str = "") -> Usage:
    """An error about the field at a dotted path of a recipe. Without a fix it refers to the help on fields."""
    return Usage(f"{where}: {what}", fix=fix or HELP)


def one_error(problems: Sequence[Usage]) -> Usage:
    """Combine several errors about a recipe into one."""
    if len(problems) == 1:
        return problems[0]
    return Usage(f"{len(problems)} errors", evidence="\n".join(map(str, problems)))


def suggestion(name: str, names: Iterable[str]) -> str:
    """A hint for a misspelled name: `did you mean X?`, or all valid names if none is close."""
    names = list(names)
    matches = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {matches[0]}?" if matches else f"the names are {', '.join(names)}"


def method_suggestion(name: str, names: Iterable[str]) -> str:
    """A hint for a misspelled method: `did you mean X?`, or the three nearest names of the many."""
    names = list(names)
    if get_close_matches(name, names, n=1, cutoff=0.6):
        return suggestion(name, names)
    nearest = get_close_matches(name, names, n=3, cutoff=0.0)
    return f"the nearest are {', '.join(nearest)}; all of them: groupwise methods"


def unknown_keys(where: str, owner: str, key: str, item: object, known: Iterable[str], method: str = "") -> list[Usage]:
    """The errors for an unknown field of the class `owner`: one, or one for each option of TRL or verl in a table.

    `item` is the key's value. The advice fits the published `method`, if the recipe names one.
    """
    paths = list(leaves(key, item))
    if len(paths) == 1 or not any(map(other_name_fix, paths)):
        return [unknown_key(where, owner, paths[0] if len(paths) == 1 else key, known, item, method)]
    return [problem(where, f"{owner} has no field {path!r}", other_name_fix(path, method) or ROWS) for path in paths]


def leaves(path: str, item: object) -> Iterator[str]:
    """The dotted paths of the values in nested tables; the path itself for a value, and for an empty table.

    >>> list(leaves("data", {"train_files": "x", "val": {"n": 1}}))
    ['data.train_files', 'data.val.n']
    """
    todo = [(path, item)]
    while todo:  # no recursion: a file may nest tables by a thousand dots
        path, item = todo.pop()
        if isinstance(item, Mapping) and item:
            todo += [(f"{path}.{key}", inner) for key, inner in reversed(list(item.items()))]
        else:
            yield path


def unknown_key(
    where: str, owner: str, path: str, known: Iterable[str], value: object = None, method: str = ""
) -> Usage:
    """The error for a dotted path whose first key is an unknown field of the class `owner`, with a value.

    It has the name here of an option of TRL or verl, for a published method if there is one, or else a suggestion.
    """
    key = path.partition(".")[0]
    table = where.removeprefix("recipe").removeprefix(".")
    if fix := line_with_value(f"{table}.{path}" if table else path, value, method):
        return problem(where, f"{owner} has no field {path!r}", fix)
    if owner == "Recipe" and key in SECOND_NAMES:
        first = ".".join([SECOND_NAMES[key], *path.split(".")[1:]])
        return problem(where, f"{owner} has no field {path!r}", f"write {first}, its name in a recipe")
    if owner == "Method" and (methods := methods_with_argument().get(key, ())):
        several = f" and {len(methods) - 3} more methods" if len(methods) > 3 else ""
        fix = f"it is an argument of {', '.join(methods[:3])}{several}: set it where method.base is one of them"
        return problem(where, f"{owner} has no field {key!r}, and the method no such argument", fix)
    if not (names := list(known)):
        return problem(where, f"{owner} has no field {key!r}, and no other", 'name another part: kind = "..."')
    return problem(where, f"{owner} has no field {key!r}; {suggestion(key, names)}")


def unknown_field(path: str) -> Usage | None:
    """The error for a dotted path that names no field of a recipe; None for one that does.

    Constants of components are not checked. `method.NAME` may be an argument of a published method: which ones a method
    has is checked when it is read.

    >>> unknown_field("method.objective.surrogate.high"), unknown_field("method.advantage.0.eps")
    (None, None)
    >>> unknown_field("promts").what
    "recipe: Recipe has no field 'promts'; did you mean prompts?"
    """
    section, names = "", path.split(".")
    for i, name in enumerate(names):
        if section not in SECTIONS or section in REPLACEABLE or name.isdecimal() or name in ("base", "kind"):
            return None
        owner = SECTIONS[section]
        known = [field for field, _, _ in declared(home(owner), owner)]
        if name not in known and not (section == "" and name in (*SWITCHES, KEY)):
            if section == "method" and name in methods_with_argument():
                return None
            return unknown_key(f"recipe.{section}".strip("."), owner, ".".join(names[i:]), known)
        section = f"{section}.{name}".strip(".")
    return None
