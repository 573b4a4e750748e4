"""The page of verifiers: its commands run, and it has a row for each verifier."""

from pathlib import Path

from groupwise.config.registry import fitting_names
from groupwise.core import part_named, plain_name
from groupwise.data import VerifierSettings
from tests.docs.test_pages import HOME, follow


def test_the_page_runs(tmp_path: Path) -> None:
    assert "groupwise audit my_file:grade" in " ".join(follow("docs/verifiers.md", tmp_path))


def test_every_verifier_has_a_row() -> None:
    page = (HOME / "docs" / "verifiers.md").read_text()
    elsewhere = {"EnvironmentVerdictVerifier", "Countdown", "GymScore"}  # the pages of turns and of tasks describe them
    kinds = {name for name in fitting_names(VerifierSettings) if not part_named(name).supported_tasks}
    assert not [name for name in kinds - elsewhere if f"| `{plain_name(name)}` |" not in page]
