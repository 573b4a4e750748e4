"""The documentation site: each page is in its navigation, links and anchors exist, nothing is loaded from outside."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.site_pages import linked_files, on_page_markdown

from tests.docs.test_pages import HOME, PAGES

CONFIG = yaml.safe_load((HOME / "mkdocs.yml").read_text())
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def in_navigation(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_every_page_is_in_the_navigation_once() -> None:
    pages = in_navigation(CONFIG["nav"])
    assert len(pages) == len(set(pages)) and CONFIG["strict"]
    assert set(pages) == {page for page in linked_files(PAGES) if page.endswith(".md")}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_have_a_target(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", FENCED.sub("", (HOME / page).read_text()))
    here = HOME / page
    local = [(here.parent / path if path else here, anchor) for path, anchor in links if ":" not in path]
    assert [(path.name, anchor) for path, anchor in local if anchor not in anchors(path)] == []


def test_markdown_of_github_becomes_that_of_mkdocs() -> None:
    assert on_page_markdown("<!-- a -->\n| x |\n<!-- /a -->\n") == "\n<!-- a -->\n\n| x |\n\n<!-- /a -->\n\n"
    assert on_page_markdown("```toml short.toml\na = 1\n```\n").startswith('```toml title="short.toml"\n')
    assert on_page_markdown("```sh\nls -l\n```\n") == "```sh\nls -l\n```\n"


def test_the_site_builds(tmp_path: Path) -> None:
    """Strict: a broken link, a broken anchor or a page without a place in the navigation fails."""
    pytest.importorskip("material", reason="needs groupwise[site]")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert loaded == [], page
    assert 'class="filename">short.toml' in (tmp_path / "site/docs/runs.html").read_text()
