"""`check` of a recipe for tests that look at its errors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from groupwise.checks import check as checks
from groupwise.config.user_code import UserCode
from groupwise.core import GroupwiseError


def check(
    source: str | Path | None,
    overrides: Sequence[tuple[str, Any]] = (),
    use: UserCode | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> Sequence[GroupwiseError]:
    """The errors of a recipe. `notify` gets its notes."""
    checked = checks.check(source, overrides, use)
    for note in checked.notes:
        notify(note)
    return checked.errors
