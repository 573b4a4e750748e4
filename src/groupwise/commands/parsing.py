"""Parses a command line to the command's arguments, and to overrides of recipe fields."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn, TypeVar

from groupwise.commands.command_table import COMMANDS, Command
from groupwise.commands.help_epilog import CODES, EXAMPLES, below_options, width
from groupwise.commands.options import Option

T = TypeVar("T")
RECIPE_ONLY = ("train", "sweep", "check", "plan")
"""Commands whose one argument is a recipe, so that a word with an equals sign is an option of another program."""
SETTING = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.\w+)*=")


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors show the form of the command and an example of it, not all of its options."""

    def error(self, message: str) -> NoReturn:
        from groupwise.core import Usage  # late: `--help` imports no room

        needed = [word_of(action) for action in self._actions if action.required or not action.option_strings]
        usage = " ".join(["usage:", self.prog, *needed, "[OPTIONS]"])
        name = self.prog.partition(" ")[2]
        example = [f"such as: {EXAMPLES[name].splitlines()[0]}"] if name else []
        fix = "\n".join([*example, f"{self.prog} --help lists the {'options' if name else 'commands'}"])
        self.exit(Usage.code, f"{usage}\nerror: {Usage(message, fix=fix)}\n")


def word_of(action: argparse.Action) -> str:
    """An argument, or an option with its value, as the usage shows it."""
    value = str(action.metavar or f"{{{','.join(action.choices or ())}}}")
    return " ".join([*action.option_strings[:1], value if action.required else f"[{value}]"])


def parser() -> tuple[CommandParser, dict[str, CommandParser]]:
    """The argument parser of all commands; and, by name, an option parser for each command that takes recipe fields."""
    table = CommandParser(
        prog="groupwise",
        description="Reinforcement-learning post-training of language models with verifiable rewards.",
        epilog=CODES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    table.add_argument("--version", action="store_true", help="print the version and exit")
    commands = table.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    options = {
        command.name: CommandParser(prog=f"groupwise {command.name}", add_help=False, allow_abbrev=False)
        for command in COMMANDS
        if command.takes_recipe_fields
    }
    for command in COMMANDS:
        added = commands.add_parser(
            command.name,
            parents=[with_options(options[command.name], command)] if command.takes_recipe_fields else [],
            help=command.help,
            description=fill(f"{command.help[0].upper()}{command.help[1:]}.", width()),
            epilog=below_options(command.name, fields=command.takes_recipe_fields),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        declared(added, command.arguments)
        if not command.takes_recipe_fields:
            with_options(added, command)
    commands.choices["completion"].set_defaults(commands=commands.choices)
    return table, options


def with_options(table: CommandParser, command: Command) -> CommandParser:
    """The parser with a command's options, and below them its permissions."""
    declared(table, command.options)
    if command.permission_options:
        declared(table.add_argument_group("permissions, which no recipe can give"), command.permission_options)
    return table


def declared(table: argparse._ActionsContainer, options: Sequence[Option]) -> None:
    """Add these options or arguments to a parser or to a group of its options."""
    for names, settings in options:
        table.add_argument(*names, **settings)


def parse(
    table: CommandParser, options: Mapping[str, CommandParser], words: Sequence[str]
) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Parse a command line: its arguments, and its overrides of recipe fields.

    The option parser of a command takes the options. Of the other words, overrides are taken out and the rest is
    parsed by `table`. Words after `--` are no options and no overrides.
    """
    check_command(table, words)
    if words[:1] == ["help"] and words[1:2] != ["--help"] and words[1:2] != ["-h"]:
        words = ["help", *(word.lstrip("-") for word in words[1:])]  # `help --lr` is `help lr`
    command = options.get(words[0]) if words else None
    if command is None:
        a, others = table.parse_known_args(words)
        if others and words[0].startswith("-"):
            table.error(f"there is no option {others[0]} before a command")
        if others:
            from groupwise.commands.unknown_options import unknown_words

            raise unknown_words(words[0], others)
        return a, []
    end = words.index("--") if "--" in words else len(words)
    if {"-h", "--help"}.intersection(words[:end]):
        return table.parse_args([words[0], "--help"]), []
    known, others = command.parse_known_args(words[:end])
    arguments, overrides = split(words[0], others)
    a = table.parse_args([*arguments, *words[end:]])
    vars(a).update(vars(known))
    return a, overrides


def check_command(table: CommandParser, words: Sequence[str]) -> None:
    """End with an error if the first word is no command. The error names a similar one, or all commands."""
    names = [command.name for command in COMMANDS]
    if not words or words[0].startswith("-") or words[0] in names:
        return
    from groupwise.methods.families import method_files, published_name

    near = get_close_matches(words[0], names, n=1)
    advice = f"did you mean {near[0]}?" if near else ", ".join(names)
    if (method := published_name(words[0])) in method_files():
        advice = f"it is a method: groupwise train --method {method}"
    table.error(f"no command is called {words[0]!r}; {advice}")


def split(command: str, words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate positional arguments from overrides: `--dotted.field value` or `--dotted.field=value`."""
    arguments, overrides = [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, text = word.partition("=")
        if not word.startswith("--"):
            arguments.append(word)
        elif (value := text if equals else next(remaining, None)) is None or (not equals and value.startswith("--")):
            from groupwise.commands.unknown_options import option_without_value

            raise option_without_value(command, word)
        else:
            overrides.append((name.removeprefix("--"), value))
    settings = [word for word in arguments if SETTING.match(word) and not Path(word).exists()]
    if command in RECIPE_ONLY and settings:
        from groupwise.commands.unknown_options import words_without_dashes

        raise words_without_dashes(command, settings, overrides)
    return arguments, overrides


def options_of(kind: type[T], a: argparse.Namespace, **others: Any) -> T:
    """Fill a dataclass of options from the arguments with the names of its fields. `others` take precedence."""
    values = {f.name: getattr(a, f.name) for f in fields(kind) if hasattr(a, f.name)}  # type: ignore[arg-type]
    return kind(**values | others)
