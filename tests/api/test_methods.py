"""Methods by name and from files."""

from pathlib import Path

import pytest

import groupwise as gw
from groupwise.core import Usage
from groupwise.methods import published

MINE = """
import groupwise as gw


def mine():
    return gw.gspo(group_size=3)
"""


def test_methods_are_loaded_by_name_and_from_files(tmp_path: Path) -> None:
    assert gw.list_methods() == [method.__name__ for method in published]
    assert gw.load_method("gspo", group_size=8) == gw.gspo(group_size=8)
    assert gw.load_method("grpo", advantage=[gw.centred]).advantage == (gw.centred,)
    file = tmp_path / "a.toml"
    file.write_text('seed = 3\nmethod = { base = "dapo", group_size = 5 }')
    assert gw.load_method(file) == gw.load_method(file.read_text()) == gw.load_method("dapo", group_size=5)
    (tmp_path / "file.py").write_text(MINE)
    assert gw.load_method("file:mine", use=[tmp_path / "file.py"]) == gw.gspo(group_size=3)


def test_a_wrong_method_is_named() -> None:
    with pytest.raises(Usage, match="unknown method 'gsop'; did you mean gspo"):
        gw.load_method("gsop")
    with pytest.raises(Usage, match="Method has no field 'groupsize'"):
        gw.load_method("gspo", groupsize=3)
