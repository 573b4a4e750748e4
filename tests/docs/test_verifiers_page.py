"""The page of verifiers is run as it is written, and names every verifier there is."""

from pathlib import Path

from groupwise.verifiers import verifier_names
from tests.docs.test_pages import HOME, follow


def test_the_page_of_verifiers_as_written(tmp_path: Path) -> None:
    assert "groupwise audit my_file:grade" in follow("docs/verifiers.md", tmp_path)[0]


def test_every_verifier_has_a_row() -> None:
    page = (HOME / "docs" / "verifiers.md").read_text()
    elsewhere = {"calculator_answer", "countdown", "reasoning_gym"}  # of one task each, told where that is
    assert not [name for name in verifier_names() if name not in elsewhere and f"| `{name}` |" not in page]
