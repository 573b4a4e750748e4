"""Photograph prompts before and after the training of flow models, from the reports of runs: pictures of docs/flow.md.

    python -m tools.before_after_pictures

trains the packaged recipes `rings`, `quilts` and `glyphs` in build/picture, in two minutes, and writes
docs/before-after-rings-light.png, its dark one, and those of the others. Needs Chromium and the extra `dev`.
"""

import sys
from pathlib import Path
from typing import Any

from tools.readme_picture import ALONE, DOCS, open_browser, trained

RECIPES = ("rings", "quilts", "glyphs")
WIDTH = 1000
"""The width of a picture, in CSS pixels."""
TWO = """() => {
    for (const node of document.querySelectorAll('.pair-of-sides:nth-child(n + 3)')) node.remove();
}"""
"""Leaves the first two prompts of the section."""


def photograph(browser: Any, report: Path, recipe: str, out: Path) -> list[Path]:
    """Write the light and the dark picture of a report; return their paths."""
    paths = []
    for scheme in ("light", "dark"):
        size = {"width": WIDTH, "height": 900}
        page = browser.new_page(color_scheme=scheme, viewport=size, device_scale_factor=1.5)
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.evaluate(ALONE, "before")
        page.evaluate(TWO)
        paths.append(out / f"before-after-{recipe}-{scheme}.png")
        page.locator("#before .pairs").screenshot(path=paths[-1])
        page.close()
    return paths


def main() -> int:
    runs = {recipe: trained(DOCS.parent / "build" / "picture", recipe) for recipe in RECIPES}
    with open_browser() as browser:
        for recipe, run in runs.items():
            for path in photograph(browser, run / "report.html", recipe, DOCS):
                print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
