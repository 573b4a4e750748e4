"""Pages, examples and recipes name a field of a recipe as it is named now; so does the changelog with classes."""

import ast
import re
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from groupwise.config.fields import SECTIONS, recipe_fields
from groupwise.config.registry import parts
from groupwise.config.trl_and_verl_names import EARLIER_FIELDS, OTHER_VALUES

HOME = Path(__file__).parents[2]
FOLDERS = ("docs/**/*.md", "examples/**/*.py", "examples/**/*.toml", "recipes/**/*.toml", "benchmarks/**/*.md")
PAGES = sorted([HOME / "README.md", HOME / "CHANGELOG.md", *(p for folder in FOLDERS for p in HOME.glob(folder))])
TABLES = ("lora", "warm_start", "columns", "sampling", "machine", "cluster", "evaluate", "save")
"""Tables whose fields are the same in each recipe. Those of the others depend on the kind of a part."""
FIELD = re.compile(rf"(?<![\w./])({'|'.join(TABLES)})\.([a-z_]+)(?![\w(/]|\.(?:py|md|toml|json)\b)")
FILE_NAMES = ("py", "md", "toml", "json", "jsonl")


def absent_fields(text: str) -> list[str]:
    """The names of fields in a text that no recipe has. A name of an earlier version may be beside the present one."""
    known = set(recipe_fields()) | set(SECTIONS)
    found = []
    for item in re.split(r"\n(?=[-*|#]|\n)", text):
        names = [f"{table}.{name}" for table, name in FIELD.findall(item) if name not in FILE_NAMES]
        names += [name for name in EARLIER_FIELDS if re.search(earlier(name), item)]
        found += [name for name in names if name not in known and EARLIER_FIELDS.get(name, name) not in item]
        found += [f"{path} {value}" for path, value in OTHER_VALUES if re.search(rf'{path}(?: = "?| ){value}\b', item)]
    return sorted({*found})


def earlier(name: str) -> str:
    """The pattern of an earlier name. One without a table is a word of English except in front of a value."""
    if "." in name:
        return rf"(?<![\w./])(?:warm_start\.)?{re.escape(name)}(?![\w(/.])"
    return rf"(?:--|`|^){name} ?= "


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`save.model_every`", ["save.model_every"]),
        ("`engine.rows = 3`", ["engine.rows"]),
        ("--warm_start.optimizer.decay linear", ["optimizer.decay"]),
        ('`sinks = ["wandb"]`', ["sinks"]),
        ("--engine.placement same", ["engine.placement same"]),
        ("- `engine.rows` is `engine.max_num_seqs`\n- `engine.rows`", ["engine.rows"]),
        ("`save.every`, `cluster.py`, `columns.errors()` and it also = 3", []),
    ],
)
def test_an_absent_name_is_found(text: str, names: list[str]) -> None:
    assert absent_fields(text) == names


def test_every_page_has_the_present_names() -> None:
    found = {str(page.relative_to(HOME)): absent_fields(page.read_text()) for page in PAGES}
    assert {page: names for page, names in found.items() if names} == {}


SETTINGS = {"setting", "settings", "field", "fields"}
"""Heads of the first column of tables whose rows are settings."""
BOUNDS = ("max", "min", "num")
"""First words of settings whose second word alone reads as a name: `restarts` for `max_restarts`."""
OTHER_NAMES = ("coming-from.md", "fields.md")
"""Pages with the settings of other programs, and the generated one with examples of values."""


@cache
def setting_names() -> frozenset[str]:
    """The names of all fields of a recipe, without their tables, and of all constants of components."""
    paths = [*recipe_fields(), *SECTIONS]
    constants = {field.name for part in parts().values() if is_dataclass(part) for field in fields(part)}
    return frozenset({word for path in paths for word in path.split(".")} | constants | {"base"})


@cache
def program_names() -> tuple[frozenset[str], frozenset[str]]:
    """The members of the package's classes, and those that it asks for; the arguments of functions and calls."""
    members, arguments = set[str](), set[str]()
    for file in (HOME / "src").glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.ClassDef():
                    for each in node.body:
                        match each:
                            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                                members.add(name)
                            case ast.FunctionDef(name=name):
                                members.add(name)
                case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    members.add(name)
                case ast.arg() | ast.keyword(arg=str()):
                    arguments.add(str(node.arg))
    return frozenset(members), frozenset(arguments)


def absent_settings(text: str) -> list[str]:
    """The names in code font that stand as settings and are none: in the first column of a table of settings, before
    a value, and in the place of a bound, such as `restarts` for `max_restarts`.
    """
    known, (members, arguments) = setting_names(), program_names()
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    found = set[str]()
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        head, _, *rows = (line.split("|")[1] for line in table.splitlines())
        if head.strip() in SETTINGS:
            found |= {name for cell in rows for name in re.findall(r"`([a-z_]+)`", cell)} - known
    values = {path.split(".")[-1] for path in re.findall(r"`([a-z_.]{2,}) = [^`]+`", text)}
    bare = {name for name in re.findall(r"`([a-z_]+)`", text) if {f"{bound}_{name}" for bound in BOUNDS} & known}
    return sorted(found | values - known - members - arguments | bare - known - members)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("started at most `restarts` times", ["restarts"]),
        ("| setting | meaning |\n|---|---|\n| `max_num_seqs`, `rows` | the sequences |\n", ["rows"]),
        ("with `engine.max_row = 3` and `max_num_seqs = 3`", ["max_row"]),
        ("| metric | meaning |\n|---|---|\n| `rows` | a number |\n", []),
        ("at most `max_restarts` times, `updated_per_iteration = True`", []),
    ],
)
def test_a_setting_that_is_none_is_found(text: str, names: list[str]) -> None:
    assert absent_settings(text) == names


def test_every_page_names_settings_in_full() -> None:
    pages = [page for page in HOME.glob("docs/**/*.md") if page.name not in OTHER_NAMES]
    found = {str(page.relative_to(HOME)): absent_settings(page.read_text()) for page in pages}
    assert {page: names for page, names in found.items() if names} == {}


PROGRAM_WORDS = {"True", "False", "None", "Host", "MyTracker", "KeyboardInterrupt", "TimeoutError"}
"""Words in code spans that are no classes of the package: Python's, HTTP's, and a user's class."""


def test_the_changelog_names_classes_of_the_package() -> None:
    """The list for users of earlier versions is left out: it has both names of what was renamed."""
    _, _, present = (HOME / "CHANGELOG.md").read_text().partition("earlier development version")[2].partition("\n### ")
    source = "\n".join(path.read_text() for path in (HOME / "src").rglob("*.py"))
    classes = {*re.findall(r"^\s*class (\w+)", source, re.M), *re.findall(r"^([A-Z]\w+)[^=\n]* = ", source, re.M)}
    spans = " ".join(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", present))
    named = set(re.findall(r"(?<![\w./\"'-])(?:gw\.)?([A-Z][a-z]+[A-Za-z]*)\b", spans))
    assert len(named) > 30 and named - classes <= PROGRAM_WORDS
