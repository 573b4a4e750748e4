"""A run killed at any instant, and resumed, ends with the same bits as a run never killed."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.kill_points import LIBRARY, Point, Undisturbed, go_on, killed_ends_as, points, undisturbed
from tests.faults.small_runs import EVERY, SECOND, Quick, alive, begun, left, run_from


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(replace(EVERY, iterations=2), tmp_path_factory.mktemp("every"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(SECOND, tmp_path_factory.mktemp("second"))


@pytest.mark.kill
@pytest.mark.t(49)
def test_a_run_killed_after_any_change_of_its_disk_ends_with_the_bits_of_one_never_killed(
    every: Undisturbed, tmp_path: Path
) -> None:
    """One kill after each kind of change: half and all of every file, each line, rename and removal.

    A killed process leaves its disk and nothing else. Points between two changes of the disk leave the same bytes, so
    one of them stands for all. Every fourth run is killed again while it resumes.
    """
    tried = [point for point in points(every.events, 0.6) if point[0] in every.disk | LIBRARY]
    assert len(tried) >= 15 and {"half of tensors.safetensors", "a line of metrics.jsonl", "after replace"} <= {
        name for name, _ in tried
    }
    for number, death in enumerate(tried):
        again = ("before restore", 1) if number % 4 == 0 else None
        killed_ends_as(every, tmp_path / str(number), death, again)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.t(49)
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_run_killed_at_any_event_ends_with_the_bits_of_one_never_killed(
    share: float, every: Undisturbed, tmp_path: Path
) -> None:
    """Every kind of event, of the disk and of memory, at its first, a later and its last occurrence."""
    tried = points(every.events, share)
    assert len(tried) >= 40 and {"before sample", "after learn", "a verdict", "after a token"} <= {n for n, _ in tried}
    for number, death in enumerate(tried):
        again = ("before restore", 1) if number % 4 == 0 else None
        killed_ends_as(every, tmp_path / str(number), death, again)


@pytest.mark.t(49)
@pytest.mark.parametrize(
    ("death", "again"),
    [
        (("after write", 4), ("after iteration", 1)),
        pytest.param(("before save", 3), ("half of a line of metrics.jsonl", 1), marks=pytest.mark.kill),
        pytest.param(("before learn", 4), ("truncate", 1), marks=pytest.mark.kill),
        (("half of state.json", 2), ("after sample", 1)),
    ],
)
def test_iterations_since_the_last_checkpoint_come_again(
    death: Point, again: Point, second: Undisturbed, tmp_path: Path
) -> None:
    """Killed in the third or the fourth iteration of a run that saves after the second; then killed once more."""
    killed_ends_as(second, tmp_path / "run", death, again)


def killed(directory: Path, second: Undisturbed, chance: random.Random, longest: float) -> int:
    """Start or continue a run up to six times, and kill it after a random time. Return how often it died."""
    deaths = 0
    for _ in range(6):
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.dup2(2, 1)
                run_from(directory, second.objects, disk=Quick())
                os._exit(0)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.2, 0.9) * longest)
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        deaths += code != 0
        if code == 0:
            break
    return deaths


@pytest.mark.t(49)
def test_a_run_killed_at_any_time(second: Undisturbed, tmp_path: Path) -> None:
    """Kills at random times, some of them while the run only computes."""
    chance, longest = random.Random(7), second.seconds
    while not killed(directory := begun(tmp_path / f"{longest:.4f}", SECOND), second, chance, longest):
        longest /= 2  # the run ended before the first kill: this machine is faster now than it was undisturbed
    assert not go_on(directory, second)
    assert left(directory) == second.files
    alive(directory, SECOND)
