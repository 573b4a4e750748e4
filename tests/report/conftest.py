"""Opens a page in a browser, and checks afterwards that it asked for nothing and that no planted script ran."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def visit(browser) -> Iterator[Any]:
    """Opens a file. Afterwards it checks: one request, no error, no dialog, and no planted script ran."""
    opened = []

    def visit(path: Path, **context: Any) -> Any:
        scripts = context.pop("scripts", True)
        page = browser.new_context(
            java_script_enabled=scripts, **({"viewport": {"width": 1280, "height": 900}} | context)
        ).new_page()
        page.events = {"requests": [], "errors": [], "dialogs": []}
        page.on("request", lambda r: page.events["requests"].append(r.url) if not r.url.startswith("data:") else None)
        page.on("console", lambda m: page.events["errors"].append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: page.events["errors"].append(str(e)))
        page.on("dialog", lambda d: (page.events["dialogs"].append(d.message), d.dismiss()))
        page.goto(path.as_uri())
        if scripts:
            page.wait_for_selector("html[data-ready]", state="attached")
        opened.append(page)
        return page

    yield visit
    for page in opened:
        assert len(page.events["requests"]) == 1, page.events["requests"]
        assert page.events["errors"] == [] and page.events["dialogs"] == []
        assert page.evaluate("window.__pwn") is None
        page.context.close()
