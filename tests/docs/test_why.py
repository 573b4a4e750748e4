"""The page of complaints: its commands run, its tests exist, and the README has a row for each of its sections."""

import re
from pathlib import Path

from tests.docs.test_pages import HOME, follow

PAGE = (HOME / "docs" / "why.md").read_text()
ISSUE = re.compile(r"https://github\.com/[\w./-]+/(?:issues|pull)/\d+")


def sections() -> dict[str, str]:
    """The text of each numbered section, by its heading."""
    _, *parts = re.split(r"^## (?=\d+\. )", PAGE.partition("\n## All tests at once")[0], flags=re.M)
    return {part.partition("\n")[0]: part for part in parts}


def test_the_page_runs(tmp_path: Path) -> None:
    assert len(follow("docs/why.md", tmp_path)) == 14
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 4


def test_each_section_has_an_issue_what_happens_here_and_what_shows_it() -> None:
    assert len(sections()) == 12
    for heading, text in sections().items():
        assert ISSUE.search(text.partition("**Here.**")[0]), heading
        assert "```" in text or "**Test.**" in text, heading


def test_the_named_tests_exist() -> None:
    for text in sections().values():
        _, _, named = text.partition("**Test.**")
        code = "".join((HOME / file).read_text() for file in re.findall(r"`(tests/[\w/]+\.py)`", named))
        missing = [name for name in re.findall(r"`(test_\w+)`", named) if f"def {name}(" not in code]
        assert not missing and (code or "**Test.**" not in text)


def test_the_readme_has_a_row_for_each_section() -> None:
    readme = (HOME / "README.md").read_text()
    table = readme.partition("## What goes wrong elsewhere")[2].partition("[Why]")[0]
    rows = [ISSUE.findall(line) for line in table.splitlines() if ISSUE.search(line)]
    assert len(rows) == 12
    for (issue,), text in zip(rows, sections().values(), strict=True):
        assert issue in text
