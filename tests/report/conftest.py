"""Opens a page in a browser, and checks afterwards that it asked for nothing and that no planted script ran."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def idle(browser) -> dict[bool, list[Any]]:
    """Pages that are blank again, with scripts and without: a new one takes a second of processor time."""
    return {True: [], False: []}


@pytest.fixture
def visit(browser, idle) -> Iterator[Any]:
    """Opens a file. Afterwards it checks: one request, no error, no dialog, and no planted script ran."""
    opened = []

    def visit(
        path: Path,
        *,
        scripts: bool = True,
        color_scheme: str = "light",
        reduced_motion: str = "no-preference",
        viewport: dict[str, int] | None = None,
    ) -> Any:
        page = idle[scripts].pop() if idle[scripts] else new_page(browser, scripts)
        page.events = {"requests": [], "errors": [], "dialogs": []}
        page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
        page.set_viewport_size(viewport or {"width": 1280, "height": 900})
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_selector("html[data-ready]", state="attached")
        opened.append((scripts, page))
        return page

    yield visit
    for scripts, page in opened:
        assert len(page.events["requests"]) == 1, page.events["requests"]
        assert page.events["errors"] == [] and page.events["dialogs"] == []
        assert page.evaluate("window.__pwn") is None
        page.evaluate("localStorage.clear()")
        page.mouse.move(0, 0)
        page.goto("about:blank")
        idle[scripts].append(page)


def new_page(browser: Any, scripts: bool) -> Any:
    """A page in a context of its own, which keeps in `events` what it asked for and what went wrong."""
    page = browser.new_context(java_script_enabled=scripts).new_page()
    page.on("request", lambda r: page.events["requests"].append(r.url) if not r.url.startswith("data:") else None)
    page.on("console", lambda m: page.events["errors"].append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: page.events["errors"].append(str(e)))
    page.on("dialog", lambda d: (page.events["dialogs"].append(d.message), d.dismiss()))
    return page
