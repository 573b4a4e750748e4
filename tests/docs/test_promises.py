"""Each page that promises equal bits or bytes leads to the page that says where they hold."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
CONDITIONS = "reproducibility.md"
GENERATED = ("api.md", "fields.md", "methods.md", "sockets.md")
PROMISE = re.compile(r"\b(?:same|equal)\s+(?:bits|bytes)\b|\breproducible\b")
PAGES = [HOME / "README.md", *(p for p in sorted(HOME.glob("docs/**/*.md")) if p.name not in (CONDITIONS, *GENERATED))]


@pytest.mark.parametrize("page", [p for p in PAGES if PROMISE.search(p.read_text())], ids=lambda p: p.stem)
def test_a_page_that_promises_equal_bits_leads_to_their_conditions(page: Path) -> None:
    assert CONDITIONS in page.read_text()


def test_the_conditions_name_all_that_the_plan_knows() -> None:
    page = (HOME / "docs" / CONDITIONS).read_text()
    conditions = page[page.index("**Not promised.**") :]
    assert all(word in conditions for word in ("accelerators", "threads", "vLLM"))
    assert "equal runs of a mixture may differ" in page
