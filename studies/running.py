"""Runs the trials of a study in one process or several, and stores their results."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from benchmarks.atlas.running import run_all, unmeasured

from groupwise.certificates.studies import StudyRun, StudyRunResult, read_results
from groupwise.sandbox.worker_pool import end_with_parent
from studies.pages import RESULTS
from studies.study import SEEDS, Study
from studies.tuning import tuned_runs

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
    return len(unmeasured(runs_of(find_study(name), seeds, parts, home / RESULTS), home / RESULTS))


def runs_of(study: Study, seeds: Iterable[int], parts: Sequence[str], results: Path) -> dict[StudyRun, set[str]]:
    """The runs of some parts, or of all with the tuned ones as far as the results say, with their metrics.

    With some of the seeds only, the tuned ones are left out.
    """
    whole = not parts and set(SEEDS) <= set(seeds)
    return study.trials(seeds, parts) | (tuned_runs(study, read_results(results)) if whole else {})


def run(name: str, seeds: Sequence[int], parts: Sequence[str], until: float, home: Path) -> None:
    """Run a study's trials that have no fresh result and that no other process runs.

    The results of a grid and of a look decide which runs follow.
    """
    study, results = find_study(name), home / RESULTS
    results.parent.mkdir(parents=True, exist_ok=True)
    made = None
    while (runs := runs_of(study, seeds, parts, results)) != made:
        run_trials(study, runs, results, home / "runs" / "studies", until)
        made = runs


def run_trials(study: Study, trials: Mapping[StudyRun, set[str]], results: Path, runs: Path, until: float) -> None:
    """Run trials of a study below a folder, and store their results in a file."""
    use = [HOME / path for path in study.use]
    for trial, result in run_all(trials, results, runs, HOME, until, study.bases, use):
        text = f"{result.cpu_seconds:.0f} s" if isinstance(result, StudyRunResult) else f"failed: {result!r}"
        print(f"{trial.task} {trial.method} seed {trial.seed} {' '.join(trial.settings)}: {text}", flush=True)
