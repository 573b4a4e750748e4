"""The command line of the atlas. `make atlas` runs it; this measures one method:

python -m benchmarks.atlas gspo
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.atlas.page import page, table_of
from benchmarks.atlas.repeated import differences, drawn
from benchmarks.atlas.running import is_measured, run_all
from benchmarks.atlas.studies import FIRST_METHODS, Study, needed_trials, studies, unread_trials

from groupwise.certificates.effect_comparisons import EffectComparison, compare
from groupwise.certificates.studies import RESULTS, StudyRun, StudyRunResult, read_results
from groupwise.evaluation.seed_verdicts import NOT_ENOUGH_RUNS
from groupwise.methods import published

HOME = Path(__file__).parents[2]
PAGE = Path("docs/atlas.md")
USE = (HOME / "studies/rounded_engine.py",)
"""The file of the engine that the effect of `train_inference_mismatch` names."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.atlas",
        description="Measure the stated effects of published methods, and write docs/atlas.md. Resumable.",
    )
    parser.add_argument("method", nargs="*", metavar="NAME", help="measure these methods, in this order (all)")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="start no run after N minutes")
    parser.add_argument("--page", action="store_true", help="only write the page from the stored results")
    parser.add_argument("--runs", type=Path, default=HOME / "runs" / "atlas", metavar="DIR", help="folder of the runs")
    other = "compare with other fresh seeds, from N on; print both results, and change no page"
    parser.add_argument("--base-seed", type=int, metavar="N", help=other)
    again = "make a share of the stored runs again below DIR, and compare them with the stored ones"
    parser.add_argument("--fresh", type=Path, metavar="DIR", help=again)
    parser.add_argument("--share", type=float, metavar="0.1", help="with --fresh: the share of the stored runs")
    parser.add_argument("--draw-seed", type=int, metavar="N", help="with --fresh: the seed that draws them")
    a = parser.parse_args(argv)
    known = {method.__name__ for method in published}
    if unknown := [name for name in a.method if name not in known]:
        parser.error(f"{unknown[0]} is no published method; groupwise methods lists them")
    check_share(parser, a)
    chosen, until = in_order(a.method), time.monotonic() + 60 * a.minutes
    if a.fresh:
        return repeat(chosen, a.fresh.resolve(), a.share, a.draw_seed, until)
    if a.base_seed is not None:
        return int(not measure_other_seeds(chosen, a.base_seed, a.runs.resolve(), until))
    complete = a.page or measure(chosen, HOME / RESULTS, a.runs.resolve(), until)
    results = read_results(HOME / RESULTS)
    (HOME / PAGE).write_text(page(results), encoding="utf-8")
    for trial in unread_trials(results):
        print(f"no study reads this run, remove its line from {RESULTS}: {trial}", flush=True)
    return int(not complete)


def check_share(parser: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Exit with an error unless `--fresh` has a share and a seed that draws it, and no other option does its work."""
    if bool(a.fresh) != (a.share is not None) or bool(a.fresh) != (a.draw_seed is not None):
        parser.error("--fresh DIR, --share 0.1 and --draw-seed N go together")
    if a.fresh and not 0 < a.share <= 1:
        parser.error(f"--share is {a.share:g}: a share lies above 0 and is at most 1")
    if sum((bool(a.fresh), a.page, a.base_seed is not None)) > 1:
        parser.error("--page, --fresh and --base-seed are three commands: take one")


def in_order(names: Sequence[str]) -> list[Study]:
    """The studies of these methods in their order; of all, those with the whole plan first."""
    order = [*names] or [*FIRST_METHODS, *(method.__name__ for method in published)]
    return sorted(studies(names), key=lambda study: order.index(study.method))


def measure(chosen: Sequence[Study], stored: Path, runs: Path, until: float) -> bool:
    """Run what the studies need: grids, then fresh seeds, look by look. Returns whether all have run."""
    measure_runs(chosen, [stored], runs, until)
    return report(chosen, [stored])


def measure_runs(
    chosen: Sequence[Study], files: Sequence[Path], runs: Path, until: float, first_seed: int | None = None
) -> None:
    """Run what the studies need, and store it in the last file, until nothing is left or the time is over."""
    failed = set[StudyRun]()
    while time.monotonic() <= until:
        needed, results = needed_of(chosen, files, first_seed)
        left = {trial: names for trial, names in needed.items() if not is_measured(trial, names, results)}
        left = {trial: names for trial, names in left.items() if trial not in failed}
        made = list(map(told, run_all(left, files[-1], runs, HOME, until, use=USE)))
        failed |= {trial for trial, result in made if isinstance(result, Exception)}
        if not made:
            return


def needed_of(chosen: Sequence[Study], files: Sequence[Path], first_seed: int | None = None) -> tuple[dict, dict]:
    """The runs that the studies need, and the stored results of all files."""
    results = {trial: result for file in files for trial, result in read_results(file).items()}
    return needed_trials(chosen, results, first_seed), results


def told(made: tuple[StudyRun, StudyRunResult | Exception]) -> tuple[StudyRun, StudyRunResult | Exception]:
    """Print a line on a run that ended."""
    trial, result = made
    if isinstance(result, Exception):
        text = f"failed: {result!r}"
    else:
        text = f"{result.cpu_seconds:.0f} s" + ", collapsed" * (not result.tokens)
    print(f"{trial.task} {trial.method} seed {trial.seed}: {text}", flush=True)
    return made


def report(chosen: Sequence[Study], files: Sequence[Path], first_seed: int | None = None) -> bool:
    """Print each study's verdict, and how many runs are missing. Returns whether none is."""
    needed, results = needed_of(chosen, files, first_seed)
    for study in chosen:
        found = compare(study.method, study.effect, results, first_seed)
        print(f"{study.method}: {cell(found)}", flush=True)
    missing = [trial for trial, names in needed.items() if not is_measured(trial, names, results)]
    if missing:
        print(f"not finished: {len(missing)} runs have no result; the same command goes on", flush=True)
    return not missing


def measure_other_seeds(chosen: Sequence[Study], first_seed: int, runs: Path, until: float) -> bool:
    """Compare at the stored choices with other fresh seeds, and print both results. Returns whether all have run."""
    files = [HOME / RESULTS, runs / "other_seeds.jsonl"]
    runs.mkdir(parents=True, exist_ok=True)
    measure_runs(chosen, files, runs, until, first_seed)
    complete = report(chosen, files, first_seed)
    _, results = needed_of(chosen, files, first_seed)
    pairs = [[compare(x.method, x.effect, results, first) for first in (None, first_seed)] for x in chosen]
    rows = [(study.method, *map(cell, pair)) for study, pair in zip(chosen, pairs, strict=True)]
    print(table_of(("method", "stored", f"seeds from {first_seed}"), rows))
    return complete


def cell(found: EffectComparison | None) -> str:
    return str(found) if found else f"undecided: {NOT_ENOUGH_RUNS}"


def repeat(chosen: Sequence[Study], home: Path, share: float, seed: int, until: float) -> int:
    """Make a share of the stored runs of some studies again below a folder. Returns 1 if one has no result."""
    needed, stored = needed_of(chosen, [HOME / RESULTS])
    taken = drawn([trial for trial in needed if trial in stored], share, seed)
    home.mkdir(parents=True, exist_ok=True)
    for made in run_all({trial: needed[trial] for trial in taken}, home / RESULTS.name, home, HOME, until, use=USE):
        told(made)
    again = read_results(home / RESULTS.name)
    print("\n".join(differences({trial: stored[trial] for trial in taken}, again)))
    return int(not set(taken) <= again.keys())


if __name__ == "__main__":
    sys.exit(main())
