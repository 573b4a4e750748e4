"""The command line of the studies. `make studies` runs it; this runs one study with two seeds:

python -m studies length_bias --seeds 0..1
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.atlas.__main__ import check_share
from benchmarks.atlas.repeated import differences, drawn
from benchmarks.atlas.running import unmeasured

from groupwise.certificates.studies import StudyRun, read_results
from groupwise.core import MissingRequirement
from studies.claims import fresh_results
from studies.figures import need_matplotlib, new_figure, write_svg
from studies.index import index_blocks, other_seeds
from studies.pages import RESULTS, filled, read_exact, store_exact, total_cost, written
from studies.running import HOME, find_study, run_jobs, run_trials
from studies.study import SEEDS, Results, Study
from studies.tuning import best_measured, possible_runs, tuned_runs

NAMES = (
    "length_bias",
    "useful_length",
    "difficulty",
    "clip_fraction",
    "gspo_regimes",
    "ratio_drift",
    "r1_zero",
    "dynamic_sampling",
    "divisors",
    "pass_at_k",
    "ladder",
    "clip_higher",
    "moe",
    "dense_twin",
    "engine_logprobs",
    "smollm2",
)
"""The studies, in the order in which `make studies` runs them."""
INDEX = "docs/studies/index.md"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m studies",
        description="Run studies of published effects, and write their pages in docs/studies. Runs with a stored "
        "result are kept.",
    )
    parser.add_argument("study", nargs="*", metavar="NAME", help=f"run these studies: {', '.join(NAMES)} (all)")
    parser.add_argument("--seeds", type=seeds_of, default=list(SEEDS), metavar="0..4", help="run only these seeds")
    parser.add_argument("--part", action="append", default=[], metavar="PART", help="run only this part of one study")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="N", help="start no run after N minutes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="train in N processes at once")
    parser.add_argument("--page", action="store_true", help="only write the pages from the stored results")
    fresh = "make a share of the stored runs again below DIR, and compare them with the stored ones"
    parser.add_argument("--fresh", type=Path, metavar="DIR", help=fresh)
    parser.add_argument("--share", type=float, metavar="0.1", help="with --fresh: the share of the stored runs")
    parser.add_argument("--draw-seed", type=int, metavar="N", help="with --fresh: the seed that draws them")
    other = "run with the seeds N to N + 4, print the results beside the stored ones, and change no page"
    parser.add_argument("--base-seed", type=int, metavar="N", help=other)
    a = parser.parse_args(argv)
    if unknown := [name for name in a.study if name not in NAMES]:
        parser.error(f"no study is called {unknown[0]!r}: take {', '.join(NAMES)}")
    if a.jobs < 1:
        parser.error(f"--jobs is {a.jobs}: at least one process trains")
    if a.part and len(a.study) != 1:
        parser.error("--part is a part of one study: name it, as in: python -m studies length_bias --part coin")
    check_share(parser, a)
    studies, until = list(map(find_study, a.study or NAMES)), time.monotonic() + 60 * a.minutes
    if unknown := [part for part in a.part if part not in studies[0].parts]:
        parser.error(f"{a.study[0]} has no part {unknown[0]!r}: take {', '.join(studies[0].parts)}")
    try:
        need_matplotlib()
        able = [] if a.page else [study for study in studies if is_able(study, named=bool(a.study))]
    except MissingRequirement as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    if a.fresh:
        return repeat(able, a.fresh.resolve(), a.share, a.draw_seed, until)
    if a.base_seed is not None:
        return measure_other_seeds(able, range(a.base_seed, a.base_seed + len(SEEDS)), until)
    missing = 0
    for study in studies:
        if study in able:
            store_exact(study.name, study.exact(), HOME)
            missing += run_jobs(a.jobs, study.name, a.seeds, a.part, until, HOME)
        write(study, HOME)
    write_index(HOME)
    for trial in unread_trials(read_results(HOME / RESULTS)):
        print(f"no study reads this run, remove its line from {RESULTS}: {trial}", flush=True)
    if missing:
        print(f"not finished: {missing} runs have no result; the same command goes on", file=sys.stderr)
    return int(missing > 0)


def repeat(studies: Sequence[Study], home: Path, share: float, seed: int, until: float) -> int:
    """Make a share of the stored runs of studies again below a folder. Returns 1 if one has no result."""
    stored, taken = read_results(HOME / RESULTS), list[StudyRun]()
    file = home / RESULTS.name
    for study in studies:
        trials = study.trials(SEEDS) | tuned_runs(study, stored)
        own = drawn([trial for trial in trials if trial in stored], share, seed)
        run_trials(study, {trial: trials[trial] for trial in own}, file, home, until)
        taken += own
    again = read_results(file)
    print("\n".join(differences({trial: stored[trial] for trial in taken}, again)))
    return int(not set(taken) <= again.keys())


def measure_other_seeds(studies: Sequence[Study], seeds: range, until: float) -> int:
    """Run studies with other seeds below runs/studies, and print both results. Returns 1 if a run has no result."""
    runs, missing = HOME / "runs" / "studies", 0
    file = runs / "other_seeds.jsonl"
    runs.mkdir(parents=True, exist_ok=True)
    for study in studies:
        run_trials(study, study.trials(seeds), file, runs, until)
        missing += len(unmeasured(study.trials(seeds), file))
    stored, others = read_results(HOME / RESULTS), read_results(file)
    print(other_seeds([study.name for study in studies], stored, others, seeds, read_exact(HOME)))
    return int(missing > 0)


def unread_trials(results: Results) -> list[StudyRun]:
    """The stored runs that no study reads: its settings have changed since, or it is gone."""
    studies = list(map(find_study, NAMES))
    read = {run for study in studies for run in [*study.trials(SEEDS), *tuned_runs(study, results)]}
    read |= {run for study in studies for run in possible_runs(study, results)}
    return [trial for trial in results if trial not in read]


def is_able(study: Study, *, named: bool) -> bool:
    """Whether a study's requirements are installed. MissingRequirement if not and the command names the study."""
    try:
        study.requires()
    except MissingRequirement as error:
        if named:
            raise
        print(f"left out: {study.name}: {error}", flush=True)
        return False
    return True


def seeds_of(text: str) -> list[int]:
    """Seeds from text. Pages read those of `SEEDS` alone.

    >>> seeds_of("0..4"), seeds_of("1,3")
    ([0, 1, 2, 3, 4], [1, 3])
    """
    try:
        first, dots, last = text.partition("..")
        seeds = list(range(int(first), int(last) + 1)) if dots else [int(seed) for seed in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or not set(seeds) <= set(SEEDS):
        problem = f"{text!r} is no choice of the seeds {SEEDS[0]} to {SEEDS[-1]}: write 0..4, 3, or 0,2"
        raise argparse.ArgumentTypeError(problem)
    return seeds


def write(study: Study, home: Path) -> None:
    """Write a study's page, its figure, and the numbers of the figure."""
    for path, text in written(study, home).items():
        path.write_text(text, encoding="utf-8")
    measured = best_measured(study, read_results(home / RESULTS))
    if next(iter(study.parts)) in measured:
        figure, panels = new_figure(study.panels)
        study.draw(panels, measured, read_exact(home).get(study.name, {}))
        write_svg(figure, study.alt, study.svg(home))


def write_index(home: Path) -> None:
    """Write the verdict of each study and the cost of all studies into the index of the pages."""
    path, results = home / INDEX, read_results(home / RESULTS)
    blocks = {
        **index_blocks(results, read_exact(home), fresh_results(home)),
        "studies_cost": total_cost(map(find_study, NAMES), results),
    }
    path.write_text(filled(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
