"""The sandbox of tests that need no limits of their own."""

from collections.abc import Iterator

import pytest

from groupwise.sandbox import Sandbox
from tests.sandbox.boxes import needed


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One process. A module has its own, since an execution may end it."""
    needed()
    pool = Sandbox(boxes=1)
    yield pool
    pool.close()
