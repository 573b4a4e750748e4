"""Rewrites the advice of an error message as command-line options: `prompts = 4` becomes `--prompts 4`.

Messages about a recipe name its lines, as its file has them. A field that the command set by an option, or a command
without a recipe's file, is answered with an option. `python_spelling` does the same for callers of the library.
"""

import re
from collections.abc import Sequence

from groupwise.config.python_advice import CLASS_HELP, FIELD_LINE, SEVERAL, field_pattern, is_part
from groupwise.config.trl_and_verl_names import option_of
from groupwise.core import GroupwiseError

__all__ = ["in_options", "spell_options"]


def spell_options(error: GroupwiseError, words: Sequence[str]) -> None:
    """Render what an error advises for a command with these words, its file and its options, in place."""
    error.what, error.fix = in_options(error.what, words), in_options(error.fix, words)
    if SEVERAL.fullmatch(error.what):
        error.evidence = in_options(error.evidence, words)


def in_options(text: str, words: Sequence[str]) -> str:
    """A message with lines of a recipe as options, for a command with these words.

    >>> in_options("such as prompts = 4, or fewer", ["train"])
    'such as --prompts 4, or fewer'
    >>> in_options("such as prompts = 4, or fewer", ["train", "my.toml"])
    'such as prompts = 4, or fewer'
    >>> in_options("such as prompts = 4, or fewer", ["train", "my.toml", "--prompts=3"])
    'such as --prompts 4, or fewer'
    """
    given = {word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")}
    has_file = any(word.endswith(".toml") for word in words)

    def option(match: re.Match[str]) -> str:
        path = match[1]
        typed = any(name == path or path.startswith(f"{name}.") for name in given)
        return match[0] if has_file and not typed else option_of(path, match[2])

    text = CLASS_HELP.sub(lambda match: f"groupwise help {match[1]}" if is_part(match[1]) else match[0], text)
    if not has_file:
        text = FIELD_LINE.sub(r"write \1", text)
    return field_pattern().sub(option, text)
