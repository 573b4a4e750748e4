"""The documentation site: each page is in its navigation, links and anchors exist, nothing is loaded from outside."""

import json
import re
import subprocess
import sys
from functools import cache
from os.path import normpath
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from studies.forest import SIZE
from tools.site_pages import START, linked_files, on_config, on_page_markdown, with_method_links

from groupwise.methods.families import FAMILIES, method_files
from tests.docs.test_pages import HOME, METHOD_PAGES, PAGES, text_of

CONFIG = yaml.safe_load((HOME / "mkdocs.yml").read_text())
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def in_navigation(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]


@cache
def anchors(page: str) -> set[str]:
    """The anchors of a page: those of its headings, and those in HTML."""
    text = FENCED.sub("", text_of(page))
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    headings = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
    return headings | set(re.findall(r'<a id="(\w+)"></a>', text))


def test_every_page_is_in_the_navigation_once() -> None:
    pages = in_navigation(CONFIG["nav"])
    assert len(pages) == len(set(pages)) and CONFIG["strict"]
    shown = [page for page in PAGES if page != "README.md"]  # the site begins with docs/index.md
    assert set(pages) == {page for page in linked_files(shown) if page.endswith(".md")} and START in pages


@pytest.mark.parametrize("page", [*PAGES, *METHOD_PAGES])
def test_links_to_anchors_have_a_target(page: str) -> None:
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", FENCED.sub("", text_of(page)))
    local = [(normpath(Path(page).parent / path) if path else page, a) for path, a in links if ":" not in path]
    assert [(path, anchor) for path, anchor in local if anchor not in anchors(path)] == []


def test_links_of_methods_lead_to_their_pages_in_the_site() -> None:
    """Also by the family: an anchor of the index that is no method stays."""
    text = "[a](methods.md#gspo) [b](../docs/methods.md#gspo) [c](methods.md#ratio) [d](x.md#gspo) [e](methods.md)"
    assert with_method_links(text, "docs/atlas.md") == text.replace("methods.md#gspo", "methods/gspo.md")
    index = with_method_links(text_of("docs/methods.md"), "docs/methods.md")
    assert {f"docs/{page}" for page in re.findall(r"\]\((methods/\w+\.md)\)", index)} == set(METHOD_PAGES)
    assert "src/groupwise" not in index


def test_the_navigation_has_each_method_in_its_family() -> None:
    config = SimpleNamespace(nav=[{"Methods": []}])
    on_config(config)
    ((section,),) = (entry.values() for entry in config.nav)
    assert [family for entry in section for family in entry] == list(FAMILIES)
    assert sorted(in_navigation(section)) == METHOD_PAGES


def test_markdown_of_github_becomes_that_of_mkdocs() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/runs.md"), meta={})
    both = "![x](r-light.png#only-light)\n![x](r-dark.png#only-dark)\n"
    assert on_page_markdown("![x](r-light.png)\n", page) == both
    dark = '<source media="(prefers-color-scheme: dark)" srcset="r-dark.png">'
    assert on_page_markdown(f'<picture>\n  {dark}\n  <img alt="x" src="r-light.png">\n</picture>\n', page) == both
    assert on_page_markdown("<!-- a -->\n| x |\n<!-- /a -->\n", page) == "\n<!-- a -->\n\n| x |\n\n<!-- /a -->\n\n"
    assert on_page_markdown("```toml short.toml\na = 1\n```\n", page).startswith('```toml title="short.toml"\n')
    assert on_page_markdown("```sh\nls -l\n```\n", page) == "```sh\nls -l\n```\n"


@pytest.mark.parametrize(
    ("page", "times"),
    [
        ("docs/runs.md", None),
        ("docs/install.md", 8.0),
        ("docs/methods/gspo.md", 4.0),
        ("docs/methods/gspo_token.md", 2.0),
    ],
)
def test_the_search_finds_a_method_before_its_variants_and_install_first(page: str, times: float) -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
    on_page_markdown("text", shown)
    assert shown.meta == ({"search": {"boost": times}} if times else {})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Strict: a broken link, a broken anchor or a page without a place in the navigation fails."""
    pytest.importorskip("material", reason="needs groupwise[site]")
    out = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(out)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds(site: Path) -> None:
    """The page of each method is built, the index and the atlas lead to it, and the search finds it."""
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())
        assert loaded == [], page
    docs = site / "docs"
    start = (site / "index.html").read_text()
    assert all(door in start for door in ("Train a model", "Read a method", "Extend", "docs/install.html"))
    assert 'class="filename">short.toml' in (docs / "runs.html").read_text()
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    titles = {entry["location"]: entry["title"] for entry in entries}
    assert [place for place, title in titles.items() if title == "Early stopping"] == ["docs/early-stopping.html"]
    for page in ("methods", "atlas"):
        linked = set(re.findall(r'href="methods/(\w+)\.html"', (docs / f"{page}.html").read_text()))
        assert linked == set(method_files()), page
    for name in method_files():
        assert (docs / f"methods/{name}.html").is_file() and titles[f"docs/methods/{name}.html"] == name


CUT = """() => {
    const edge = document.querySelector('.md-content').getBoundingClientRect().right + 1;
    const cut = (table) => table.getBoundingClientRect().right > edge
        || [...table.querySelectorAll('th, td')].some((cell) => cell.scrollWidth > cell.clientWidth + 1);
    return [...document.querySelectorAll('.md-typeset table:not([class])')].filter(cut).map((t) => t.rows[0].innerText);
}"""
"""The first rows of the tables that lie partly beside the column of the page, or whose cells are cut."""
MISSING = "all => all.filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)"


def with_wide_tables(site: Path) -> list[Path]:
    """The pages with a table of seven columns or more."""
    heads = re.compile(r"<thead>(.*?)</thead>", re.DOTALL)
    widths = {page: [head.count("<th") for head in heads.findall(page.read_text())] for page in site.rglob("*.html")}
    return sorted(page for page, own in widths.items() if max(own, default=0) >= 7)


@pytest.mark.browser
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tables_and_pictures_are_seen_whole(site: Path, browser: Any, every: bool) -> None:
    """At 1280 pixels no column of a table is off the screen; on a phone a wide table scrolls, and the page does not."""
    pages = sorted(site.rglob("*.html")) if every else [*with_wide_tables(site), site / "docs/flow.html"]
    assert len(pages) > 10
    tab = browser.new_page()
    for page in pages:
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.goto(page.as_uri())
        assert tab.evaluate(CUT) == [], page
        assert tab.locator("article img").evaluate_all(MISSING) == [], page
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390, page
    tab.close()


@pytest.mark.browser
def test_the_letters_of_the_claims_have_11_pixels_on_the_start_page(site: Path, browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto((site / "docs/studies/index.html").as_uri())
    picture = tab.locator('img[src$="verdicts.svg"]')
    assert picture.evaluate("(i) => i.getBoundingClientRect().width / i.naturalWidth") * SIZE >= 11
    tab.close()
