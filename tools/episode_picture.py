"""Photograph two episodes of an agent in a run's report, a right and a wrong one: the picture of docs/agents.md.

    python -m tools.episode_picture RUN

writes docs/episodes-light.png and docs/episodes-dark.png. Needs Chromium and the extra `dev`.
"""

import sys
from pathlib import Path
from typing import Any

from tools.readme_picture import ALONE, DOCS, open_browser, walk_to_right_and_wrong

WIDTH, HEIGHT = 920, 900
"""The size of the picture, in CSS pixels."""
TWO = """() => {
    const others = '#rollouts > header, .pickers, .answer:nth-child(n + 3)';
    for (const node of document.querySelectorAll(others)) node.remove();
    for (const tree of document.querySelectorAll('.tree')) tree.style.maxHeight = 'none';
}"""
"""Leaves the prompt and the first two episodes on the page."""


def photograph(browser: Any, report: Path, out: Path) -> list[Path]:
    """Write both pictures of a report; return their paths."""
    return [_photograph(browser, report, out, scheme) for scheme in ("light", "dark")]


def _photograph(browser: Any, report: Path, out: Path, scheme: str) -> Path:
    page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    walk_to_right_and_wrong(page, report)
    page.evaluate(ALONE, "rollouts")
    page.evaluate(TWO)
    path = out / f"episodes-{scheme}.png"
    page.screenshot(path=path)
    page.close()
    return path


def main() -> int:
    with open_browser() as browser:
        for path in photograph(browser, Path(sys.argv[1]) / "report.html", DOCS):
            print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
