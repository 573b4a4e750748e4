"""Errors for options that a command does not have. They name the option to write. Imports no torch."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from groupwise.commands.command_table import COMMANDS, Command
from groupwise.config.answer_with_value import option_with_value
from groupwise.config.fields import SECOND_NAMES, SECTIONS, recipe_fields, same_end
from groupwise.config.recipe_errors import one_error, unknown_field
from groupwise.config.trl_and_verl_names import field_named, other_name_fix
from groupwise.core import GroupwiseError, Usage
from groupwise.methods.families import published_name

Overrides = Sequence[tuple[str, str]]


def named_fields(overrides: Overrides) -> list[tuple[str, str]]:
    """The overrides with the first names of their fields. `Usage` for two names of one field.

    >>> named_fields([("data", "rows.jsonl"), ("data.train_batch_size", "64")])
    [('task', 'rows.jsonl'), ('data.train_batch_size', '64')]
    """
    words: dict[str, str] = {}
    for word, _ in overrides:
        if words.setdefault(first_name(word), word) != word:
            two = f"--{words[first_name(word)]} and --{word}"
            raise Usage(f"{two} are names of one field", fix="leave one of them out")
    return [(first_name(word), value) for word, value in overrides]


def first_name(path: str) -> str:
    """The name in a recipe of a field with a dotted path. Options of verl begin with `data`, too: they stay."""
    word, dot, rest = path.partition(".")
    return path if dot and other_name_fix(path) else SECOND_NAMES.get(word, word) + dot + rest


def check_options(command: str, overrides: Overrides, file: str | None = None) -> None:
    """Raise `Usage` for overrides that name no field of a recipe, and so no option of the command.

    The advice fits the method that the overrides name, or the recipe in `file`.
    """
    if problems := unknown_options(command, overrides, file):
        raise one_error([*problems.values()])


def unknown_options(command: str, overrides: Overrides, file: str | None) -> dict[str, Usage]:
    """The errors for overrides that name no field of a recipe, by the override's path."""
    unknown = [(path, value) for path, value in overrides if unknown_field(path)]
    method = named_method(overrides, file) if unknown else ""
    errors = {path: unknown_option(command, path, value, method) for path, value in unknown}
    return {path: error for path, error in errors.items() if error}


def named_method(overrides: Overrides, file: str | None) -> str:
    """The method that the overrides name, or else a recipe's file; empty if they name none.

    >>> named_method([("prompts", "4"), ("method", "DPO")], None)
    'dpo'
    """
    given = dict(overrides)
    if name := given.get("method.base", given.get("method", "")):
        return published_name(name)
    if not (file or "").endswith(".toml"):
        return ""
    from groupwise.config.toml import base_of, read_toml  # late: few commands have an unknown option

    try:
        return base_of(read_toml(Path(str(file))))
    except GroupwiseError:  # the command reports it once its options are right
        return ""


def unknown_option(command: str, path: str, value: str = "", method: str = "") -> Usage | None:
    """The error for an option that is neither one of the command nor a field of a recipe; None if it is a field.

    The advice fits the published `method`, if the user named one.

    >>> unknown_option("eval", "smaples").fix, unknown_option("train", "learning-rate").fix
    ('did you mean --samples?', 'write --optimizer.lr 1e-6')
    """
    if (problem := unknown_field(path)) is None:
        return None
    return Usage(f"{command} has no option --{path}", fix=fix_of(command, path, problem, value, method))


def option_without_value(command: str, word: str) -> Usage:
    """The error for an option that no value follows: of another program, or a field, whose example it has.

    >>> option_without_value("train", "--epochs").fix, option_without_value("train", "--use_peft").fix
    ('write --epochs 3; groupwise help epochs explains it', 'write --lora.rank 16')
    """
    path = word.lstrip("-")
    field = recipe_fields().get(first_name(path))
    fix = f"write --{path} {field.example if field else 'VALUE'}; groupwise help {path} explains it"
    return unknown_option(command, path) or Usage(f"{word} needs a value", fix=fix)


def words_without_dashes(command: str, words: Sequence[str], overrides: Overrides) -> Usage:
    """The error for options as verl writes them: `data.train_batch_size=64`, beside these overrides."""
    problems = []
    settings = [(path, value) for path, _, value in (word.lstrip("+").partition("=") for word in words)]
    method = named_method([*overrides, *settings], None)
    for word, (path, value) in zip(words, settings, strict=True):
        unknown = unknown_option(command, path, value, method)
        dashes = f"an option begins with two dashes: --{path} {value}"
        problems.append(Usage(f"{word} is no option", fix=unknown.fix if unknown else dashes))
    return one_error(problems)


def fix_of(command: str, path: str, problem: Usage, value: str, method: str) -> str:
    """The option to write instead of an unknown one. `problem` is the error for a field of this name."""
    written = path.replace("-", "_")
    if unknown_field(first_name(written)) is None:
        return f"write --{written}"
    if hint := other_name_fix(written, method):
        line, _, option = hint.partition(", as an option ")
        own = re.sub(r"^write ([\w.]+), its", r"write --\1, its", line)
        return f"write {option_with_value(written, option, value, method)}" if option else own
    if option := near(path, options_of_command(table_of(command))):
        return f"did you mean --{option}?"
    ends, similar = same_end(written), [name for name in [corrected(written)] if name]
    if names := (similar or ends) if "." in written else (ends or similar):
        return f"did you mean {' or '.join(f'--{name}' for name in names[:3])}?"
    if path.partition(".")[0] in SECTIONS and "." in path:
        return problem.what.partition("; ")[2] or problem.fix
    return f"groupwise help lists the fields of a recipe, groupwise {command} --help the other options"


def corrected(path: str) -> str:
    """A dotted path with its first unknown name replaced by a similar one; empty if there is none.

    >>> corrected("method.objective.surrogat.low"), corrected("method.colour")
    ('method.objective.surrogate.low', '')
    """
    names = path.split(".")
    parents = (".".join(names[:i]) for i in range(len(names)))
    parent = next(parent for i, parent in enumerate(parents) if unknown_field(".".join(names[: i + 1])))
    depth = parent.count(".") + 1 if parent else 0
    fields = [field.split(".") for field in (*recipe_fields(), *filter(None, SECTIONS), *SECOND_NAMES)]
    known = {field[depth] for field in fields if len(field) > depth and ".".join(field[:depth]) == parent}
    found = near(names[depth], sorted(known))
    return ".".join([*names[:depth], found, *names[depth + 1 :]]) if found else ""


def unknown_words(command: str, words: Iterable[str]) -> Usage:
    """The error for the words that a command without fields of a recipe cannot take: options and arguments."""
    word = next(iter(words))
    if not word.startswith("-"):
        return Usage(f"{command} has no argument {word!r} left", fix=f"groupwise {command} --help shows its arguments")
    option = word.partition("=")[0]
    name = option.lstrip("-")
    options = options_of_command(table_of(command))
    if found := near(name, options):
        fix = f"did you mean --{found}?"
    elif takers := [one.name for one in COMMANDS if name in options_of_command(one)]:
        fix = f"leave it out: it is an option of {', '.join(takers)}"
    elif unknown_field(first_name(name.replace("-", "_"))) is None or field_named(name):
        takers = [one.name for one in COMMANDS if one.takes_recipe_fields]
        fix = f"leave it out: a field of a recipe is an option of {', '.join(takers)}"
    else:
        fix = f"its options are {', '.join(f'--{one}' for one in options)}" if options else "leave it out: it has none"
    return Usage(f"{command} has no option {option}", fix=fix)


def table_of(name: str) -> Command:
    """The command with this name."""
    return next(command for command in COMMANDS if command.name == name)


def options_of_command(command: Command) -> list[str]:
    """The options of a command, without dashes."""
    return [name.lstrip("-") for names, _ in command.options + command.permission_options for name in names]


def near(name: str, known: Iterable[str]) -> str:
    """The known name that is similar to a name; empty if there is none. Dashes and underscores are the same.

    >>> near("stop_after", ["stop-after", "out"]), near("colour", ["out"])
    ('stop-after', '')
    """
    names = {one.replace("-", "_"): one for one in known}
    found = get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.7)
    return names[found[0]] if found else ""
