"""Photograph the rollouts of a run's report, with the chain of one token open: the picture of the README.

    python -m tools.readme_picture [RUN]

writes docs/rollouts-light.png and docs/rollouts-dark.png. Without RUN, it first trains the packaged recipe in
build/picture. Needs Chromium and the extra `dev`.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 920, 760
"""The size of the picture, in CSS pixels."""
ALONE = """(id) => {
    for (const node of [...document.body.children]) if (node.id !== 'app') node.hidden = true;
    for (const node of [...document.getElementById('app').children]) if (node.id !== id) node.remove();
    scrollTo(0, 0);
}"""
"""Leaves one section of the report alone on the page."""


def trained(out: Path, recipe: str = "calculator") -> Path:
    """The directory of a new run of a packaged recipe below `out`."""
    words = ["train", "--recipe", recipe, "--name", f"picture-{recipe}", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "groupwise", *words], check=True)
    return max(out.glob(f"picture-{recipe}-*"))


def photograph(browser: Any, report: Path, out: Path) -> list[Path]:
    """Write both pictures of a report; return their paths."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
    paths = [_photograph(page, report, out, scheme) for scheme in ("light", "dark")]
    page.close()
    return paths


def _photograph(page: Any, report: Path, out: Path, scheme: str) -> Path:
    """One picture: a group whose first two answers are right and wrong, the chain of a token open."""
    page.emulate_media(color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    walk_to_right_and_wrong(page, report)
    answer = page.locator("#rollouts .answer").first
    answer.locator("[data-i]").nth(answer.locator("[data-i]").count() // 2).click()
    page.mouse.move(0, 0)
    page.evaluate(ALONE, "rollouts")
    path = out / f"rollouts-{scheme}.png"
    page.screenshot(path=path)
    return path


def walk_to_right_and_wrong(page: Any, report: Path) -> None:
    """Show the first group whose first two answers are right and wrong."""
    page.locator("#rollouts .pickers .row").first.locator("button").first.click()
    for _ in range(500):
        outcomes = page.locator("#rollouts .answer").evaluate_all("all => all.slice(0, 2).map((x) => x.classList[1])")
        if outcomes == ["correct", "wrong"]:
            return
        page.keyboard.press("n")
    raise SystemExit(f"{report} has no group whose first two answers are right and wrong")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium, which is closed after the context."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        raise SystemExit("Chromium is missing: install the system package chromium")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def main() -> int:
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else trained(DOCS.parent / "build" / "picture")
    with open_browser() as browser:
        for path in photograph(browser, run / "report.html", DOCS):
            print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
