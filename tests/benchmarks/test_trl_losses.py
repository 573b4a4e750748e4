"""Losses of stored answers equal those of TRL's trainers on the same batch. Needs TRL: `make bench` installs it."""

import math
from pathlib import Path

import pytest
from benchmarks.trl_losses import CASES, are_close, losses_of

pytest.importorskip("trl", reason="needs TRL: pip install 'groupwise[bench]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_equal(name: str, tmp_path: Path) -> None:
    ours, theirs = losses_of(name, tmp_path)
    assert are_close(ours, theirs), (ours, theirs)
    assert ours != pytest.approx(math.log(2), abs=1e-3), "the policy differs from its reference"
