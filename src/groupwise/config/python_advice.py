"""Rewrites the advice of an error message as Python arguments: `--lora.rank 16` becomes `lora=gw.Lora(rank=16)`.

Messages are written once, in the words of the command line. The library's calls render them here
(`api/python_messages.py`), so a program never reads an option. Options of other programs, such as `hf download NAME
--local-dir DIR`, stay.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from groupwise.config.fields import SECOND_NAMES, SECTIONS, declared, home
from groupwise.config.trl_and_verl_names import answers
from groupwise.core import GroupwiseError, part_names
from groupwise.runs.permission_options import OPTIONS

__all__ = ["field_literal", "in_python", "literal", "setting_in_python", "translate"]

ARGUMENTS = {path: word for word, path in SECOND_NAMES.items()}
"""The arguments of `gw.train` with another name than their recipe field, by the field."""
PERMISSIONS = {"use": "use", **{option.removeprefix("--"): name for name, option in OPTIONS.items()}}
SINGLE = ("engine-python", "engine-secret", "engine-exchange", "agent-command")
"""Permissions with one text. The others are lists, or switches."""
SWITCHES = ("unsafe-local-exec", "trust-remote-code", "strict", "changed")
"""Options without a value."""
OF_CALLS = (
    "samples",
    "problems",
    "at",
    "out",
    "name",
    "strict",
    "changed",
    "ranks",
    "shard",
    "launch",
    "push",
    "recipe",
)
"""Options that are arguments of a call, and no fields of a recipe."""
CLASSES = {"lora": "gw.Lora", "optimizer": "gw.AdamW"}
"""Tables that a program writes as a value."""
CALLS = {"train": 1, "resume": 1, "eval": 1, "sample": 2, "export": 2}
"""Commands that are calls of the library, with the number of their words."""
RENAMED = {"eval": "evaluate"}
PHRASES = (
    (r"--(?:verifier|reward) my_file(?:\.py)?:\w+(?: (?:with )?--use my_file\.py)?", "reward=grade, your function"),
    (r"write my_file:grade and add --use my_file\.py", "pass it: reward=grade"),
    (r"--verifier exact, or your function with --use", '--verifier exact, or your function: reward=grade'),
    (r"define it in a file and load that with --use", "define it in a file that is loaded: --use my_file.py"),
    (r"groupwise help FIELD explains a field of a recipe", "docs/fields.md explains each field of a recipe"),
    (r"groupwise (show FILE|help) prints all fields( of a recipe)?", "docs/fields.md has all fields of a recipe"),
    (r"groupwise methods\b", "gw.list_methods()"),
    (r"groupwise report \S+ ANOTHER_RUN", "run.sample(PROMPT), run.export(DIR)"),
    (r'(?<![\w".-])sampling\.max_tokens(?![\w".]| =)', "max_tokens"),
    (r"start each rank by the command groupwise train or groupwise resume", "start each rank from the command line"),
    (r"add ((?: ?--[\w-]+(?: (?!to\b|--)[^\s,;]+)?)+) to the command\b", r"pass \1"),
    (r"add ((?: ?--[\w-]+ [^\s,;]+)+)$", r"pass \1"),
    (r"remove (--use [^\s,;]+) from the command\b", r"leave out \1"),
    (r"use the command-line options? ", "pass "),
    (r"write one JSON object per row, such as", "a row is a dict, such as"),
    (r"files of --use\b", "files of gw.Permissions(use=...)"),
    (r"or, on the command line: ", "or "),
)  # fmt: skip
"""Whole phrases that have another sense in a program, before its options are rendered."""
CLASS_HELP = re.compile(r'help\("groupwise\.[\w.]*?(\w+)"\) in Python')
"""The help on a class whose constructor refused a value, as `core` writes it."""
PROSE = re.compile(
    r"(?:or|and|to|of|from|with|in|is|for|above|as|it|which|names|needs|cannot|continues|lists|prints|explains|shows"
    r"|stays|once|here|alone|the|a|then|out|writes|sets|starts)(?=[\s,;:)]|$)"
)
"""Words that follow an option or a command in a sentence, and are no values of it."""
FIELD_LINE = re.compile(r"write (([\w.]+) = .+), as an option --\2 (?:'[^']*'|\S+)(?= \(|$)", re.MULTILINE)
"""The line of a recipe that sets a field, with its option, as `other_names` writes it."""
VALUE = r"""(?:'[^']*'|"[^"]*"|\{[^}]*\}|[^\s,;:)]+(?::[^\s,;:)]+)*)"""
COMMAND = re.compile(rf"groupwise ({'|'.join(CALLS)})\b((?: (?:--[\w.-]+|{VALUE}))*)")
TABLE = re.compile(r"(?<!= )\{ (?:\w+ = (?:\"[^\"]*\"|[\w.+-]+)(?:, | (?=\})))+\}")
"""A table of a recipe without a field before it: an entry of a list."""
SEVERAL = re.compile(r"\d+ errors")
"""The first line of an error whose evidence is the text of others. Any other evidence is data, and stays as it is."""
ADVICE = re.compile(r"(?<=: )(?:say )?--(?:warm_start\.)?columns\..*$", re.MULTILINE)
"""The advice for a data row, which is in the evidence behind the row's fault."""


def translate(error: GroupwiseError) -> None:
    """Render what an error says, in place. Once more changes nothing."""
    error.what, error.fix = in_python(error.what), in_python(error.fix)
    if SEVERAL.fullmatch(error.what):
        error.evidence = in_python(error.evidence)
    error.evidence = ADVICE.sub(lambda match: in_python(match[0]), error.evidence)
    error.args = (error.what,)


def in_python(text: str) -> str:
    """A message with each option, command and phrase of the command line as a program writes it.

    >>> in_python("use --template chat, or leave out --machine.compile")
    'use template="chat", or leave out machine.compile'
    >>> in_python("continue: groupwise resume runs/a --iterations 20")
    'continue: gw.resume("runs/a", iterations=20)'
    >>> in_python("hf download NAME --local-dir DIR, then --model DIR")
    'hf download NAME --local-dir DIR, then model="DIR"'
    """
    for answer in set(answers().values()):
        text = text.replace(answer.command_line_text, answer.python_text) if answer.python_text else text
    text = FIELD_LINE.sub(lambda match: f"write {match[1]}", text)
    text = TABLE.sub(_table, field_pattern().sub(_field_line, text))
    for pattern, phrase in PHRASES:
        text = re.sub(pattern, phrase, text, flags=re.MULTILINE)
    text = CLASS_HELP.sub(lambda match: f"help(gw.{match[1]})" if is_part(match[1]) else match[0], text)
    text = COMMAND.sub(lambda match: _call(match[1], match[2]), text)
    return option_pattern().sub(lambda match: _options(match[0]), text)


@cache
def recipe_names() -> tuple[str, ...]:
    """The names of a recipe's fields and tables, read from its source: a message must not wait for torch."""
    owner = SECTIONS[""]
    return tuple(name for name, _, _ in declared(home(owner), owner))


@cache
def field_pattern() -> re.Pattern[str]:
    """A line of a recipe within a text."""
    names = "|".join(recipe_names())
    value = r"""\[(?:[^\[\]]|\[[^\]]*\])*\]|\{(?:[^{}]|\{[^}]*\})*\}|"[^"]*"|[\w+-]+(?:\.\w+)?"""
    return re.compile(rf"(?<![\w.\[\"])(?<!\{{ )((?:{names})(?:\.\w+)*) = ({value})")


@cache
def option_pattern() -> re.Pattern[str]:
    """One or several options in a row, each with its value, if it has one."""
    names = sorted({*recipe_names(), *PERMISSIONS, *OF_CALLS, *SECOND_NAMES}, key=len, reverse=True)
    option = rf"--(?:{'|'.join(names)})(?:\.[\w.]+)?(?![\w-])(?:=|(?: (?!--|{PROSE.pattern})){VALUE})?"
    column = rf"--(?:warm_start\.)?columns\.\w+(?:=(?!\S)| {VALUE})"  # the name of a column may be any word
    return re.compile(rf"(?<![\w-])(?:{column}|{option})(?: (?:{column}|{option}))*")


def setting_in_python(path: str, value: Any) -> str:
    """The argument of `gw.train` that sets the field at a dotted path.

    >>> setting_in_python("optimizer.lr", 1e-5), setting_in_python("columns.prompt", "question")
    ('optimizer=gw.AdamW(lr=1e-05)', 'columns={"prompt": "question"}')
    >>> setting_in_python("sampling.max_tokens", 64), setting_in_python("method.group_size", 8)
    ('max_tokens=64', '**{"method.group_size": 8}')
    """
    return ", ".join(_arguments([(path, value)]))


def _field_line(match: re.Match[str]) -> str:
    """A line of a recipe as an argument; as it is, if it is no line of TOML."""
    try:
        return setting_in_python(match[1], tomllib.loads(f"x = {match[2]}")["x"])
    except tomllib.TOMLDecodeError:
        return match[0]


def is_part(name: str) -> bool:
    """Whether a name is one of the package's components."""
    return any(name in names for names in part_names().values())


def _table(match: re.Match[str]) -> str:
    """A table of a recipe as a dict; as it is, if it is no TOML."""
    try:
        return literal(tomllib.loads(f"x = {match[0]}")["x"])
    except tomllib.TOMLDecodeError:
        return match[0]


def _call(command: str, rest: str) -> str:
    """A command as a call; words of the sentence after it stay."""
    words, given, options = _split(rest), [], []
    while words and not PROSE.fullmatch(words[0]) and (words[0].startswith("--") or len(given) < CALLS[command]):
        word = words.pop(0)
        if not word.startswith("--"):
            given.append(word)
            continue
        path = word.removeprefix("--")
        has_value = path not in SWITCHES and words and not words[0].startswith("--")
        options.append((path, _value(words.pop(0)) if has_value else True))
    named = ["run" if word in ("RUN", "MODEL_OR_RUN") else json.dumps(word) for word in given]
    if not named and command != "train":
        named = ["run"]
    call = f"gw.{RENAMED.get(command, command)}({', '.join([*named, *_arguments(options)])})"
    return " ".join([call, *words])


def _split(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:  # an apostrophe of the sentence
        return rest.split()


def _options(text: str) -> str:
    """Options in a row as arguments. One without a value is a mention: its name."""
    found = re.findall(rf"--([\w.-]+)(?:(=)|(?: (?!--)({VALUE})))?", text)
    if len(found) == 1 and not (found[0][1] or found[0][2]) and found[0][0] not in SWITCHES:
        path = found[0][0]
        return f"gw.Permissions({PERMISSIONS[path]}=...)" if path in PERMISSIONS else str(ARGUMENTS.get(path, path))
    pairs = [(path, True if path in SWITCHES else "" if empty else _value(value)) for path, empty, value in found]
    return ", ".join(_arguments(pairs))


def _value(text: str) -> Any:
    """A word of the command line as a value of Python."""
    text = text.strip("'\"") if text[:1] in "'\"" else text
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _arguments(pairs: Sequence[tuple[str, Any]]) -> Iterator[str]:
    """Options with their values as arguments of a call: fields of one table together, permissions as one argument."""
    tables: dict[str, dict[str, Any]] = {}
    allowed: dict[str, Any] = {}
    for path, value in pairs:
        head, _, tail = path.partition(".")
        if path in PERMISSIONS:
            name = PERMISSIONS[path]
            single = path in SINGLE or path in SWITCHES
            allowed[name] = value if single else [*allowed.get(name, []), value]
        elif path in ARGUMENTS and tail:
            yield f"{ARGUMENTS[path]}={literal(value)}"
        elif "." in tail or (head == "method" and tail):
            yield f"**{{{json.dumps(path)}: {literal(value)}}}"
        else:
            tables.setdefault(head, {})[tail] = value
    for head, table in tables.items():
        word = ARGUMENTS.get(head, head)
        if table.keys() == {""} or (head == "engine" and table.keys() == {"kind"}):
            yield f"{word}={literal(next(iter(table.values())))}"
        elif head in CLASSES:
            yield f"{word}={CLASSES[head]}({', '.join(f'{key}={field_literal(x)}' for key, x in table.items())})"
        else:
            yield f"{word}={_dict({(key or 'kind'): x for key, x in table.items()})}"
    if allowed:
        yield f"permissions=gw.Permissions({', '.join(f'{name}={literal(x)}' for name, x in allowed.items())})"


def literal(value: Any) -> str:
    """A value as Python writes it, with double quotes; a placeholder such as `K` stays a name, an object is `...`."""
    if isinstance(value, str) and re.fullmatch(r"[A-Z]", value):
        return value
    if isinstance(value, Mapping):
        return _dict(value)
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if value is None or isinstance(value, bool | int | float | tuple) else "..."


def field_literal(value: Any) -> str:
    """A field of a dataclass: a list is a tuple there."""
    return f"({', '.join(map(literal, value))})" if isinstance(value, list) and len(value) > 1 else literal(value)


def _dict(table: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{json.dumps(key)}: {literal(value)}' for key, value in table.items())}}}"
