"""The page of errors lists the classes and exit codes of the code."""

import re
from pathlib import Path

import pytest

from groupwise.commands.help_epilog import CODES
from groupwise.core import errors

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
CLASSES = {n: c.code for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.GroupwiseError)}
ROWS = {
    name: (int(code), *rest) for name, code, *rest in re.findall(r"^\| `(\w+)` \| (\d+) \|(.*)\|(.*)\|$", PAGE, re.M)
}
ENDS = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.M)))


def test_each_class_has_a_row_with_its_code() -> None:
    assert {name: row[0] for name, row in ROWS.items()} == CLASSES


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"GroupwiseError"}))
def test_a_row_has_when_and_what_to_do(name: str) -> None:
    assert all(cell.strip() for cell in ROWS[name][1:])


def test_the_help_lists_the_same_codes() -> None:
    listed = set(map(int, re.findall(r"\b\d+\b", CODES)))
    closed_output = {141}  # nothing reads the help then
    assert listed == (set(CLASSES.values()) | ENDS) - closed_output
