"""The page of verifiers: its commands run, and it has a row for each verifier."""

from pathlib import Path

from groupwise.verifiers import verifier_names
from groupwise.verifiers.registry import OF_TASKS
from tests.docs.test_pages import HOME, follow


def test_the_page_runs(tmp_path: Path) -> None:
    assert "groupwise audit my_file:grade" in " ".join(follow("docs/verifiers.md", tmp_path))


def test_every_verifier_has_a_row() -> None:
    page = (HOME / "docs" / "verifiers.md").read_text()
    elsewhere = {"countdown", "reasoning_gym", *OF_TASKS}  # the pages of their tasks describe them
    assert not [name for name in verifier_names() if name not in elsewhere and f"| `{name}` |" not in page]
