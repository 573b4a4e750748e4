"""Parses a command line to the command's arguments, and to overrides of recipe fields."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from groupwise.commands.options import CODES, COMMANDS, Option

T = TypeVar("T")


def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The argument parser of all commands; and, by name, an option parser for each command that takes recipe fields."""
    table = argparse.ArgumentParser(
        prog="groupwise",
        description="Reinforcement-learning post-training of language models with verifiable rewards.",
        epilog=CODES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("--version", action="store_true", help="print the version and exit")
    commands = table.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    options = {
        command.name: argparse.ArgumentParser(prog=f"groupwise {command.name}", add_help=False, allow_abbrev=False)
        for command in COMMANDS
        if command.fields
    }
    for command in COMMANDS:
        parents = [declared(options[command.name], command.options)] if command.fields else []
        added = commands.add_parser(
            command.name,
            parents=parents,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=command.epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        declared(added, command.arguments if command.fields else command.arguments + command.options)
    commands.choices["completion"].set_defaults(commands=commands.choices)
    return table, options


def declared(table: argparse.ArgumentParser, options: Sequence[Option]) -> argparse.ArgumentParser:
    """Add these options to the parser."""
    for names, settings in options:
        table.add_argument(*names, **settings)
    return table


def parse(
    table: argparse.ArgumentParser, options: Mapping[str, argparse.ArgumentParser], words: Sequence[str]
) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Parse a command line: its arguments, and its overrides of recipe fields.

    The option parser of a command takes the options. Of the other words, overrides are taken out and the rest is
    parsed by `table`. Words after `--` are no options and no overrides.
    """
    check_command(table, words)
    command = options.get(words[0]) if words else None
    if command is None:
        return table.parse_args(words), []
    end = words.index("--") if "--" in words else len(words)
    if {"-h", "--help"}.intersection(words[:end]):
        return table.parse_args([words[0], "--help"]), []
    known, others = command.parse_known_args(words[:end])
    arguments, overrides = split(command, others)
    a = table.parse_args([*arguments, *words[end:]])
    vars(a).update(vars(known))
    return a, overrides


def check_command(table: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End with an error if the first word is no command. The error names a similar one, or all commands."""
    names = [command.name for command in COMMANDS]
    if not words or words[0].startswith("-") or words[0] in names:
        return
    near = get_close_matches(words[0], names, n=1)
    table.error(f"no command is called {words[0]!r}; " + (f"did you mean {near[0]}?" if near else ", ".join(names)))


def near_option(command: argparse.ArgumentParser, name: str) -> str:
    """The option of a command that is similar to a name without dashes; empty if there is none.

    >>> near_option(parser()[1]["eval"], "smaples")
    '--samples'
    """
    known = [word.lstrip("-") for action in command._actions for word in action.option_strings]
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"--{near[0]}" if near else ""


def split(command: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate positional arguments from overrides: `--dotted.field value` or `--dotted.field=value`."""
    arguments, overrides = [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, text = word.partition("=")
        if not word.startswith("--"):
            arguments.append(word)
        elif (value := text if equals else next(remaining, None)) is None or (not equals and value.startswith("--")):
            command.error(f"{word} needs a value")
        else:
            overrides.append((name.removeprefix("--"), value))
    return arguments, overrides


def options_of(kind: type[T], a: argparse.Namespace, **others: Any) -> T:
    """Fill a dataclass of options from the arguments with the names of its fields. `others` take precedence."""
    values = {f.name: getattr(a, f.name) for f in fields(kind) if hasattr(a, f.name)}  # type: ignore[arg-type]
    return kind(**values | others)
