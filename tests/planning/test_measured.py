"""The calibration of a plan: a plan of the measured run has its measured seconds, and other runs are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.recipe import Cluster, Recipe
from groupwise.core import Usage
from groupwise.engines import Served
from groupwise.planning.cost_model import TokenLengths
from groupwise.planning.device_splits import try_placement
from groupwise.planning.plan_calibration import ONE, calibrated
from tests.planning.test_plan import EIGHT, RECIPE, SHAPE

LENGTHS = [10, 20, 400, 30] * 32


def stored(run: Path, timings: list[dict[str, float]]) -> Path:
    """A run directory with timings and with one iteration of samples."""
    (run / "samples").mkdir(parents=True)
    (run / "timings.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in timings))
    (run / "samples" / "000001.jsonl").write_text("".join(f'{{"length": {n}}}\n' for n in LENGTHS))
    return run


def seconds(sample: float, learn: float) -> dict[str, float]:
    return {"seconds/sample": sample, "seconds/learn": learn}


def test_a_plan_of_the_measured_run_has_its_seconds(tmp_path: Path) -> None:
    run = stored(tmp_path / "one", [{"seconds": 9.0}, seconds(90, 90), seconds(3, 7), seconds(4, 8), seconds(5, 9)])
    machines = calibrated(EIGHT, run, RECIPE, SHAPE, 100)
    one = replace(machines, device_count=1)
    trial = try_placement(ONE, 0, RECIPE, SHAPE, one, TokenLengths(prompt_tokens=100, answer_lengths=tuple(LENGTHS)))
    assert (trial.sampling(), trial.learning) == pytest.approx((4.0, 8.0))
    assert machines.device_count == 8 and machines.rates_source.startswith("made up; seconds of one: sampling x ")
    twice = stored(tmp_path / "two", [seconds(8, 16)])
    again = calibrated(machines, twice, RECIPE, SHAPE, 100)
    assert (again.sampling_time_factor, again.learning_time_factor) == pytest.approx(
        (2 * machines.sampling_time_factor, 2 * machines.learning_time_factor)
    )


@pytest.mark.parametrize(
    "changes", [{"engine": Served()}, {"cluster": Cluster(max_staleness=1)}, {"cluster": Cluster(ranks=2)}]
)
def test_a_run_of_several_processes_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    run, recipe = stored(tmp_path / "run", [seconds(1, 1)]), replace(RECIPE, **changes)
    assert isinstance(recipe, Recipe)
    with pytest.raises(Usage, match="several processes, or samples ahead") as caught:
        calibrated(EIGHT, run, recipe, SHAPE, 100)
    assert caught.value.fix


def test_a_run_with_engines_on_other_hosts_gives_the_rate_of_sending_weights(tmp_path: Path) -> None:
    """Two hosts got 300 MB each, at a time; later one got them again. The seconds of its phases are of more devices."""
    bytes_, taken = "engine/sent_bytes", "engine/send_seconds"
    sent: list[dict[str, float]] = [{bytes_: 600e6, taken: 5.0}, {}, {bytes_: 300e6, taken: 1.0}]
    run = stored(tmp_path / "two hosts", [{**seconds(1, 1), **line} for line in sent])
    machines = calibrated(EIGHT, run, replace(RECIPE, engine=Served()), SHAPE, 100)
    assert machines.publish_bandwidth_gb_s == pytest.approx(0.15)
    assert machines.rates_source == "made up; weights sent at 0.15 GB/s to a host, measured in two hosts"
    assert (machines.sampling_time_factor, machines.learning_time_factor) == (1.0, 1.0)


def test_a_rate_of_small_weights_says_that_it_is_low_for_larger_ones(tmp_path: Path) -> None:
    sent = {"engine/sent_bytes": 1.5e6, "engine/send_seconds": 0.15}
    run = stored(tmp_path / "small", [{**seconds(1, 1), **sent}] * 2)
    machines = calibrated(EIGHT, run, replace(RECIPE, engine=Served()), SHAPE, 100)
    assert machines.publish_bandwidth_gb_s == pytest.approx(0.01)
    note = "(in 0.15 s for each version, of which about 0.1 s connect: low for larger weights)"
    assert machines.rates_source.endswith(f"measured in small {note}")


def test_a_run_without_an_iteration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="no iteration with timings"):
        calibrated(EIGHT, stored(tmp_path / "run", [{"seconds": 1.0}]), RECIPE, SHAPE, 100)
