"""The measurements of sending weights end when an engine does not start."""

from queue import Empty
from typing import NoReturn

import pytest
from benchmarks.send_weights import next_address

from groupwise.core import EngineLost


class Silent:
    """A queue into which nobody puts anything."""

    def get(self, timeout: float | None = None) -> NoReturn:
        assert timeout is not None, "a wait has a deadline"
        raise Empty


def test_an_engine_that_does_not_start_is_given_up() -> None:
    with pytest.raises(EngineLost, match="did not start within"):
        next_address(Silent())
