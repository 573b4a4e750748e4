"""The page of sockets: its example runs, and its signatures equal those of the package."""

from pathlib import Path

from tools.sockets_page import PAGE, sockets_page

from groupwise.core import part_names
from tests.docs.test_pages import follow


def test_the_page_runs(tmp_path: Path) -> None:
    assert follow("docs/sockets.md", tmp_path) == ["groupwise check my_parts.toml --use my_parts.py"]


def test_the_signatures_are_those_of_the_package() -> None:
    assert PAGE.read_text("utf-8") == sockets_page(), "run: make docs"
    assert all(f"**{socket}**" in PAGE.read_text("utf-8") for socket in part_names())
