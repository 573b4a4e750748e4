"""`groupwise completion SHELL`: a script that completes commands, options, fields of a recipe and methods."""

import re
from argparse import ArgumentParser
from collections.abc import Mapping

from groupwise.commands.command_table import COMMANDS
from groupwise.config.fields import SECOND_NAMES, recipe_fields
from groupwise.methods.families import method_files

SHELLS = ("bash", "zsh", "fish")
FIELDS = ("help", *(command.name for command in COMMANDS if command.takes_recipe_fields))
"""Commands that take recipe fields: as options, or (`help`) as an argument."""
METHODS = ("show", "diff", "methods", "certify")
"""Commands that take a method's name."""

BASH = """\
# {install}
_groupwise() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  case "$before" in
    --method|--method.base) words="{methods}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F _groupwise groupwise
"""
INSTALL = {
    "bash": 'put this in ~/.bashrc: eval "$(groupwise completion bash)"',
    "zsh": 'put this in ~/.zshrc: eval "$(groupwise completion zsh)"',
    "fish": "save this as ~/.config/fish/completions/groupwise.fish",
}


def completion_script(shell: str, commands: Mapping[str, ArgumentParser]) -> str:
    """The completion script of a shell. It contains all words, so that completing does not start Python."""
    words = {name: words_of(name, parser) for name, parser in commands.items()}
    if shell == "fish":
        return fish(words)
    cases = "\n".join(f'      {name}) words="{" ".join(options)}" ;;' for name, options in words.items())
    lists = {"commands": " ".join(words), "methods": " ".join(method_files())}
    script = BASH.format(install=INSTALL[shell], cases=cases, **lists)
    return script if shell == "bash" else f"autoload -Uz compinit bashcompinit && compinit && bashcompinit\n{script}"


def words_of(command: str, parser: ArgumentParser) -> list[str]:
    """The words that a shell may suggest after a command: its options, recipe fields, and names of methods."""
    words = list(dict.fromkeys(re.findall(r"(?<![\w-])--?[a-z][\w-]*", parser.format_usage())))
    if command in FIELDS:
        names = ["engine"] if command == "serve" else [*recipe_fields(), *SECOND_NAMES]
        words += [name if command == "help" else f"--{name}" for name in names]
    return words + list(method_files()) * (command in METHODS) + list(SHELLS) * (command == "completion")


def fish(words: Mapping[str, list[str]]) -> str:
    """The completion script of the shell fish."""
    lines = [
        f"# {INSTALL['fish']}",
        f"complete -c groupwise -n __fish_use_subcommand -f -a '{' '.join(words)}'",
        *(
            f"complete -c groupwise -n '__fish_seen_subcommand_from {name}' -a '{' '.join(options)}'"
            for name, options in words.items()
        ),
    ]
    return "\n".join(lines) + "\n"
