"""Code that a command line names by its file, `--verifier grader.py:grade`: the file counts as one of `--use`."""

import ast
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from groupwise.commands.command_table import COMMANDS
from groupwise.commands.options import USE

NAMED = re.compile(
    r"""(?:^|(?<=['"\s,=\[(]))(?P<file>[^\s'",=:\[\](){}]+\.py):(?P<name>[A-Za-z_]\w*)(?=['"\s,\])}]|$)"""
)
"""Such a name in the value of an option: in a list, in a table, in the values of a sweep."""
WHOLE = re.compile(r"""(?P<file>[^'",=:\[\](){}]+\.py):(?P<name>[A-Za-z_]\w*)""")
"""A value that is one such name. The path may have spaces."""
NOT_CODE = ("system", "template", "template_arguments", "model", "columns")
"""Fields of a recipe whose text never names code."""

FUNCTIONS = {"verifier": "reward", "environment": "environment", "agent": "agent", "agent.file": "agent"}
"""Fields whose value may be a function of a file, or a class, with the option that a user writes."""
FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_FUNCTION = re.compile(r"(?!none$)[\w./-]+")
"""An agent without a function's name. `none` removes the agent of a recipe."""


def with_named_files(words: Sequence[str]) -> list[str]:
    """The words of a command with each `FILE.py:NAME` as a recipe writes it, `FILE:NAME`, and `--use FILE.py` for it.

    >>> with_named_files(["train", "--verifier", "code/grader.py:grade"])
    ['train', '--use', 'code/grader.py', '--verifier', 'grader:grade']
    """
    command = next((command for command in COMMANDS if words and command.name == words[0]), None)
    if command is None or USE not in command.permission_options:
        return list(words)
    end = words.index("--") if "--" in words else len(words)
    used = [path for option, path in pairwise(words[:end]) if option == "--use"]
    used += [word.removeprefix("--use=") for word in words[:end] if word.startswith("--use=")]
    added: list[str] = []

    def recipe_name(match: re.Match[str]) -> str:
        file = match["file"]
        named = [path for path in (*used, *added) if Path(path).absolute() == Path(file).absolute()]
        namesake = [path for path in used if Path(path).name == file]  # `--use code/grader.py --verifier grader.py:f`
        if not (named or (namesake and not Path(file).is_file())):
            added.append(file)
        return f"{Path(file).stem}:{match['name']}"

    changed = [words[0]]
    for before, word in pairwise(words[:end]):
        option, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        if value and (
            names_code(option, command.takes_recipe_fields) or (command.name == "audit" and not option.startswith("--"))
        ):
            text = (WHOLE if WHOLE.fullmatch(value) else NAMED).sub(recipe_name, value)
            word = word.removesuffix(value) + text
        changed.append(word)
    uses = [word for file in added for word in ("--use", file)]
    return [changed[0], *uses, *changed[1:], *words[end:]]


def names_code(option: str, fields: bool) -> bool:
    """Whether a value of this option may name code: that of any recipe field but those of `NOT_CODE`."""
    declared = {
        name for command in COMMANDS for names, _ in command.options + command.permission_options for name in names
    }
    field = option.removeprefix("--").partition(".")[0]
    return fields and option.startswith("--") and option not in declared and field not in NOT_CODE


def check_function_names(overrides: Iterable[tuple[str, str]]) -> None:
    """Raise `Usage` for a reward, an environment or an agent that is a file without a name in it. It is not run.

    A reward may have the name of a verifier, so only an agent is a file without the ending `.py`.
    """
    from groupwise.core import Usage, or_near

    for path, value in overrides:
        word = FUNCTIONS.get(path)
        if word and (value.endswith(".py") or (word == "agent" and NO_FUNCTION.fullmatch(value))):
            file = f"{value.removesuffix('.py')}.py"
            kinds = (*FUNCTION_NODES, ast.ClassDef) if word == "environment" else FUNCTION_NODES
            fix = " or ".join(f"--{word} {file}:{name}" for name in names_in(Path(file), kinds))
            fix = f"write {fix or f'--{word} {file}:NAME'}"
            what = "class" if word == "environment" else "function"
            raise Usage(
                f"--{word} {value} names a file, and no {what} in it",
                fix=fix if Path(file).is_file() else or_near(file, fix),
            )


def names_in(file: Path, kinds: tuple[type[ast.stmt], ...]) -> list[str]:
    """The public functions, or statements of other kinds, of a Python file; none if it cannot be read."""
    try:
        nodes = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    names = [getattr(node, "name", "") for node in nodes if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]
