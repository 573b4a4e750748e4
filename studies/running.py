"""Runs the trials of a study in one process or several, and stores their results."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from benchmarks.atlas.running import run_all

from groupwise.certificates.studies import TrialResult
from studies.pages import RESULTS
from studies.study import Study

HOME = Path(__file__).parents[1]


def find_study(name: str) -> Study:
    """The study of a file in this folder."""
    return import_module(f"studies.{name}").STUDY


def run_jobs(jobs: int, name: str, seeds: Sequence[int], parts: Sequence[str], until: float) -> bool:
    """Run a study's trials in several processes, each trial in one of them. Returns whether none failed."""
    if jobs == 1:
        return run(name, seeds, parts, until)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return all([*pool.map(run, [name] * jobs, [seeds] * jobs, [parts] * jobs, [until] * jobs)])


def run(name: str, seeds: Sequence[int], parts: Sequence[str], until: float) -> bool:
    """Run a study's trials that have no fresh result and that no other process runs. Returns whether none failed."""
    study = find_study(name)
    complete, trials, use = True, study.trials(seeds, parts), [HOME / path for path in study.use]
    for trial, result in run_all(trials, HOME / RESULTS, HOME / "runs" / "studies", HOME, until, study.base, use):
        text = f"{result.cpu_seconds:.0f} s" if isinstance(result, TrialResult) else f"failed: {result!r}"
        complete &= isinstance(result, TrialResult)
        print(f"{trial.task} {trial.method} seed {trial.seed} {' '.join(trial.settings)}: {text}", flush=True)
    return complete
