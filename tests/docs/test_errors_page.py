"""The table of errors is that of the code."""

import re
from pathlib import Path

import pytest

from groupwise.__main__ import CODES
from groupwise.data import errors

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
CLASSES = {n: c.code for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.GroupwiseError)}
ROWS = {
    name: (int(code), *rest) for name, code, *rest in re.findall(r"^\| `(\w+)` \| (\d+) \|(.*)\|(.*)\|$", PAGE, re.M)
}
ENDS = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, re.M)))


def test_every_class_has_its_row_with_its_code() -> None:
    assert {name: row[0] for name, row in ROWS.items()} == CLASSES


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"GroupwiseError"}))
def test_a_row_says_when_and_what_to_do(name: str) -> None:
    assert all(cell.strip() for cell in ROWS[name][1:])


def test_the_help_names_the_same_codes() -> None:
    told = set(map(int, re.findall(r"\b\d+\b", CODES)))
    quiet = {141}  # whoever would read the help is gone
    assert told == (set(CLASSES.values()) | ENDS) - quiet
