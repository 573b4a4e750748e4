"""The command line of the studies. `make studies` runs it; this runs one study with two seeds:

python -m studies length_bias --seeds 0..1
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from groupwise.certificates.studies import StudyRun, read_results
from groupwise.core import MissingRequirement
from studies.figures import need_matplotlib, new_figure, write_svg
from studies.index import index_blocks
from studies.pages import RESULTS, changed_results, filled, read_exact, store_exact, total_cost, written
from studies.running import HOME, find_study, run_jobs
from studies.study import SEEDS, Results, Study

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
    fresh = "measure everything again below DIR, and compare the results with the stored ones"
    parser.add_argument("--fresh", type=Path, metavar="DIR", help=fresh)
    a = parser.parse_args(argv)
    if unknown := [name for name in a.study if name not in NAMES]:
        parser.error(f"no study is called {unknown[0]!r}: take {', '.join(NAMES)}")
    if a.jobs < 1:
        parser.error(f"--jobs is {a.jobs}: at least one process trains")
    if a.part and len(a.study) != 1:
        parser.error("--part is a part of one study: name it, as in: python -m studies length_bias --part coin")
    if a.page and a.fresh:
        parser.error("--page writes the pages from the stored results, --fresh measures others: leave one out")
    studies, until = list(map(find_study, a.study or NAMES)), time.monotonic() + 60 * a.minutes
    if unknown := [part for part in a.part if part not in studies[0].parts]:
        parser.error(f"{a.study[0]} has no part {unknown[0]!r}: take {', '.join(studies[0].parts)}")
    try:
        need_matplotlib()
        able = [] if a.page else [study for study in studies if is_able(study, named=bool(a.study))]
    except MissingRequirement as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    home, missing = a.fresh.resolve() if a.fresh else HOME, 0
    for study in studies:
        if study in able:
            store_exact(study.name, study.exact(), home)
            missing += run_jobs(a.jobs, study.name, a.seeds, a.part, until, home)
        if not a.fresh:
            write(study, home)
    if a.fresh:
        print(
            "\n".join([text for study in able for text in changed_results(study, HOME, home)] or ["no result changed"])
        )
    else:
        write_index(home)
        for trial in unread_trials(read_results(home / RESULTS)):
            print(f"no study reads this run, remove its line from {RESULTS}: {trial}", flush=True)
    if missing:
        print(f"not finished: {missing} runs have no result; the same command goes on", file=sys.stderr)
    return int(missing > 0)


def unread_trials(results: Results) -> list[StudyRun]:
    """The stored runs that no study reads: its settings have changed since, or it is gone."""
    read = {trial for name in NAMES for trial in find_study(name).trials(SEEDS)}
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
    measured = study.measured(read_results(home / RESULTS))
    if next(iter(study.parts)) in measured:
        figure, panels = new_figure(study.panels)
        study.draw(panels, measured, read_exact(home).get(study.name, {}))
        write_svg(figure, study.alt, study.svg(home))


def write_index(home: Path) -> None:
    """Write the verdict of each study and the cost of all studies into the index of the pages."""
    path, results = home / INDEX, read_results(home / RESULTS)
    blocks = {**index_blocks(results, read_exact(home)), "studies_cost": total_cost(map(find_study, NAMES), results)}
    path.write_text(filled(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
