"""The packaged run, whole: it learns, and neither the terminal nor the report warns."""

from pathlib import Path

import pytest

import groupwise as gw
from groupwise.data import ACCURACY_GREEDY, ENTROPY, ENTROPY_SHARE, NO_SIGNAL
from groupwise.report.read_run import read
from groupwise.report.run_warnings import find_warnings


@pytest.mark.slow
def test_the_packaged_run_learns_in_silence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its entropy falls as far as in a collapse, and at its end most groups have equal rewards: no alarm of either."""
    run = gw.train()
    output = capsys.readouterr()
    assert "warning" not in output.out + output.err
    stored = read(run.directory)
    assert find_warnings(stored) == ([], [])
    accuracy, entropy, equal = (
        stored.metrics[name].finite.metric_values for name in (ACCURACY_GREEDY, ENTROPY, NO_SIGNAL)
    )
    assert stored.last == 60 and accuracy[0] < 0.5 < 0.95 < accuracy[-1]
    assert entropy[-1] < ENTROPY_SHARE * entropy.max() and equal.max() > 0.5
