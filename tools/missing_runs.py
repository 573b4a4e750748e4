"""The runs that `make atlas` and `make studies` would make now: `python -m tools.missing_runs`.

It writes tests/studies/missing_runs.txt: for each study the number of its runs without a stored result, or with a stale
one. A test compares the file with the code, so a change that makes stored runs stale is seen when it is made. After a
deliberate change, write the file again, and the pages too: `python -m benchmarks.atlas --page` and
`python -m studies --page`.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.atlas.running import is_measured
from benchmarks.atlas.studies import needed_trials
from benchmarks.atlas.studies import studies as effects
from studies.pages import RESULTS as MEASURED
from studies.running import find_study
from studies.study import SEEDS
from studies.tuning import tuned_runs

from groupwise.certificates.studies import RESULTS, read_results
from studies import __main__ as command

HOME = Path(__file__).parents[1]
FILE = HOME / "tests/studies/missing_runs.txt"


def missing_runs() -> str:
    """A line for each study with missing runs, in the order in which the commands run them.

    A run that several studies read counts in each of them.
    """
    counts = [*_of_the_atlas(), *_of_the_studies()]
    return "".join(f"{study}: {missing} of {runs}\n" for study, missing, runs in counts if missing)


def _of_the_atlas() -> Iterator[tuple[str, int, int]]:
    """Each method's study with its missing runs, and with all runs that it needs."""
    stored = read_results(HOME / RESULTS)
    for study in effects():
        needed = needed_trials([study], stored)
        missing = sum(not is_measured(trial, metrics, stored) for trial, metrics in needed.items())
        yield f"atlas {study.method}{', ablation' if study.lesson else ''}", missing, len(needed)


def _of_the_studies() -> Iterator[tuple[str, int, int]]:
    """Each part of a study with its missing runs, and with all its runs; its tuned parts as far as the results say."""
    stored = read_results(HOME / MEASURED)
    for study in map(find_study, command.NAMES):
        for part in study.parts:
            needed = study.trials(SEEDS, [part])
            missing = sum(not is_measured(trial, metrics, stored) for trial, metrics in needed.items())
            yield f"{study.name} {part}", missing, len(needed)
        tuned = tuned_runs(study, stored)
        missing = sum(not is_measured(trial, metrics, stored) for trial, metrics in tuned.items())
        yield f"{study.name}, at the best rates", missing, len(tuned)


if __name__ == "__main__":
    FILE.write_text(missing_runs(), encoding="utf-8")
