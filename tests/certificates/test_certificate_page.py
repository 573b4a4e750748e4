"""The pages of certificates in a browser: both themes, narrow screens, one request and no script."""

from pathlib import Path

import pytest

from groupwise.certificates.map import map_page
from groupwise.certificates.page import certificate_page
from tests.certificates.test_certificate import NAMES, certificate

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme, paper", [("light", "rgb(250, 249, 246)"), ("dark", "rgb(19, 20, 22)")])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_in_both_themes(browser, tmp_path: Path, scheme: str, paper: str, width: int) -> None:
    path = tmp_path / "gspo.html"
    path.write_text(certificate_page(certificate("gspo")), encoding="utf-8")
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
    requests, errors = [], []
    page.on("request", lambda r: requests.append(r.url))
    page.on("console", lambda m: errors.append(m.text))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert page.locator("h1").inner_text() == "gspo" and page.locator(".verdict.passed").is_visible()
    assert page.locator("section").count() == 6
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "PRE"
    assert len(requests) == 1 and errors == []
    page.context.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_the_map_fits_folds_by_keyboard_and_opens_certificates(browser, tmp_path: Path, width: int) -> None:
    path = tmp_path / "index.html"
    path.write_text(map_page([certificate(name) for name in NAMES]), encoding="utf-8")
    (tmp_path / "gspo.html").write_text(certificate_page(certificate("gspo")), encoding="utf-8")
    page = browser.new_context(color_scheme="dark", viewport={"width": width, "height": 800}).new_page()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    branch = page.locator("details", has=page.locator("> summary a[href='gspo.html']")).last
    branch.locator("> summary").focus()
    page.keyboard.press("Space")
    assert not page.locator(".tree a[href='gspo_token.html']").is_visible()
    page.locator(".tree a[href='gspo.html']").click()
    assert page.locator("h1").inner_text() == "gspo"
    page.context.close()
