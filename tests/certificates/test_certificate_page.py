"""The pages of certificates in a browser: both themes, narrow screens, one request and no script."""

from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.certificates.certificate_page import certificate_page
from tests.certificates.test_certificate import certificate

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def tab(browser) -> Any:
    """The page of all tests of this file: a new one takes a second of processor time."""
    page = browser.new_page()
    page.requests, page.errors = [], []
    page.on("request", lambda r: page.requests.append(r.url))
    page.on("console", lambda m: page.errors.append(m.text))
    return page


@pytest.fixture
def page(tab) -> Any:
    """The same, blank."""
    tab.goto("about:blank")
    tab.mouse.move(0, 0)
    tab.requests.clear()
    tab.errors.clear()
    return tab


@pytest.mark.parametrize("scheme, paper", [("light", "rgb(250, 249, 246)"), ("dark", "rgb(19, 20, 22)")])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_in_both_themes(page: Any, tmp_path: Path, scheme: str, paper: str, width: int) -> None:
    path = tmp_path / "gspo.html"
    path.write_text(certificate_page(certificate("gspo")), encoding="utf-8")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert page.locator("h1").inner_text() == "gspo" and page.locator(".verdict.passed").is_visible()
    assert page.locator("section").count() == 7
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "PRE"
    assert len(page.requests) == 1 and page.errors == []


@pytest.fixture(scope="module")
def methods_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "map.html"
    assert main(["methods", "--map", str(path)]) == 0
    return path


@pytest.mark.parametrize("scheme, paper", [("light", "rgb(250, 249, 246)"), ("dark", "rgb(19, 20, 22)")])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_map_opens_a_method_by_click_and_by_keyboard(
    page: Any, methods_map: Path, scheme: str, paper: str, width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(methods_map.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert page.locator(".sheet:visible").count() == 0
    page.locator("#at-gspo").focus()
    page.keyboard.press("Enter")
    (sheet,) = page.locator(".sheet:visible").all()
    text = sheet.inner_text()
    assert all(word in text for word in (certificate("gspo").formula, *certificate("gspo").changes))
    box = sheet.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] == 800
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Close
    assert page.locator(".sheet:visible").count() == 0 and page.evaluate("document.activeElement.id") == "at-gspo"
    page.locator(".matrix td a[href='#dapo']").first.click()
    assert page.locator("#dapo").is_visible()
    page.locator("#dapo .near a[href='#grpo']").click()
    assert page.locator("#grpo").is_visible() and page.locator(".sheet:visible").count() == 1
    assert len([url for url in page.requests if "#" not in url]) == 1 and page.errors == []


def test_a_branch_of_the_map_folds_by_keyboard(page: Any, methods_map: Path) -> None:
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(methods_map.as_uri())
    branch = page.locator("details", has=page.locator("> summary #at-gspo")).last
    branch.locator("> summary").focus()
    page.keyboard.press("Space")
    assert not page.locator("#at-gspo_token").is_visible() and page.locator("#at-gspo").is_visible()
