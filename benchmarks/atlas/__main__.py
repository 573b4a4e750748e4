"""The command line of the atlas. `make atlas` runs it; this measures one method:

python -m benchmarks.atlas gspo
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.atlas.page import page
from benchmarks.atlas.running import run_all, unmeasured
from benchmarks.atlas.studies import needed_trials, studies, unread_trials

from groupwise.certificates.studies import RESULTS, StudyRun, StudyRunResult, compare, read_results
from groupwise.methods import published

HOME = Path(__file__).parents[2]
PAGE = Path("docs/atlas.md")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.atlas",
        description="Measure the stated effects of published methods, and write docs/atlas.md. Resumable.",
    )
    parser.add_argument("method", nargs="*", metavar="NAME", help="measure these methods, in this order (all)")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="start no run after N minutes")
    parser.add_argument("--page", action="store_true", help="only write the page from the stored results")
    parser.add_argument("--runs", type=Path, default=HOME / "runs" / "atlas", metavar="DIR", help="folder of the runs")
    a = parser.parse_args(argv)
    known = {method.__name__ for method in published}
    if unknown := [name for name in a.method if name not in known]:
        parser.error(f"{unknown[0]} is no published method; groupwise methods lists them")
    until = time.monotonic() + 60 * a.minutes
    complete = a.page or measure(a.method, HOME / RESULTS, a.runs.resolve(), until)
    results = read_results(HOME / RESULTS)
    (HOME / PAGE).write_text(page(results), encoding="utf-8")
    for trial in unread_trials(results):
        print(f"no study reads this run, remove its line from {RESULTS}: {trial}", flush=True)
    return int(not complete)


def measure(names: Sequence[str], stored: Path, runs: Path, until: float) -> bool:
    """Run what the studies need, first with three seeds, then the open ones with six. Returns whether all have run."""
    failed = set[StudyRun]()
    chosen = sorted(studies(names), key=lambda study: names.index(study.method)) if names else studies()
    for _ in range(2):
        needed = needed_trials(chosen, read_results(stored))
        left = {trial: metrics for trial, metrics in needed.items() if trial not in failed}
        for trial, result in run_all(left, stored, runs, HOME, until):
            if isinstance(result, StudyRunResult):
                text = f"{result.cpu_seconds:.0f} s"
            else:
                failed.add(trial)
                text = f"failed: {result!r}"
            print(f"{trial.task} {trial.method} seed {trial.seed}: {text}", flush=True)
    results = read_results(stored)
    for study in chosen:
        print(f"{study.method}: {compare(study.method, study.effect, results) or 'not measured'}", flush=True)
    if missing := unmeasured(needed_trials(chosen, results), stored):
        print(f"not finished: {len(missing)} runs have no result; the same command goes on", flush=True)
    return not missing


if __name__ == "__main__":
    sys.exit(main())
