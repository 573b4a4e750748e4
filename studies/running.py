"""Runs the trials of a study in one process or several, and stores their results."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from benchmarks.atlas.running import run_all, unmeasured

from groupwise.certificates.studies import StudyRunResult
from groupwise.sandbox.worker_pool import end_with_parent
from studies.pages import RESULTS
from studies.study import Study

HOME = Path(__file__).parents[1]


def find_study(name: str) -> Study:
    """The study of a file in this folder."""
    return import_module(f"studies.{name}").STUDY


def run_jobs(jobs: int, name: str, seeds: Sequence[int], parts: Sequence[str], until: float, home: Path) -> int:
    """Run a study's trials in several processes, each trial in one of them. Returns how many have no fresh result.

    The processes end with this one, also where it is killed. `home` has the results, and the runs below it.
    """
    if jobs == 1:
        run(name, seeds, parts, until, home)
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
            for _ in pool.map(run, *zip(*[(name, seeds, parts, until, home)] * jobs)):
                pass
    return len(unmeasured(find_study(name).trials(seeds, parts), home / RESULTS))


def run(name: str, seeds: Iterable[int], parts: Iterable[str], until: float, home: Path) -> None:
    """Run a study's trials that have no fresh result and that no other process runs."""
    study = find_study(name)
    (home / RESULTS).parent.mkdir(parents=True, exist_ok=True)
    trials, use = study.trials(seeds, parts), [HOME / path for path in study.use]
    runs = home / "runs" / "studies"
    for trial, result in run_all(trials, home / RESULTS, runs, HOME, until, study.bases, use):
        text = f"{result.cpu_seconds:.0f} s" if isinstance(result, StudyRunResult) else f"failed: {result!r}"
        print(f"{trial.task} {trial.method} seed {trial.seed} {' '.join(trial.settings)}: {text}", flush=True)
