"""The pages in docs/studies, and the CSV files of their figures, from stored results."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groupwise.certificates.studies import StudyRun, read_results
from groupwise.evaluation.seed_verdicts import LOOK_LEVEL
from studies.study import SEEDS, Exact, Results, Study
from studies.tuning import at_best_rates, best_measured, tuned_blocks, tuned_runs

RESULTS, EXACT = Path("studies/results.jsonl"), Path("studies/exact.json")
"""The stored results of all runs, and those of the exact parts, in the repository."""


def written(study: Study, home: Path) -> dict[Path, str]:
    """The text of a study's page and of its CSV file, from the stored results."""
    measured, path = best_measured(study, read_results(home / RESULTS)), home / study.page
    texts = {path: filled(path.read_text(encoding="utf-8"), blocks_of(study, home))}
    if next(iter(study.parts)) in measured:
        rows = study.rows(measured, read_exact(home).get(study.name, {}))
        texts[study.svg(home).with_suffix(".csv")] = csv_text(rows)
    return texts


def blocks_of(study: Study, home: Path) -> dict[str, str]:
    """The generated texts of a study, by block: from the stored results, or that a part was not run."""
    results, exact = read_results(home / RESULTS), read_exact(home).get(study.name, {})
    measured = study.measured(results)
    texts = {part: study.not_run(part) for part in study.parts.keys() - measured.keys()}
    if next(iter(study.parts)) not in measured:
        return texts
    tuned = at_best_rates(study, results)
    texts |= study.blocks(measured, exact) | tuned_blocks(study, results, exact)
    if tuned:
        seeds = max(len(part.seeds) for part in tuned.values())
        text = study.blocks(measured | tuned, exact)[study.name]
        texts[study.name] = f"At the best rates, with {seeds} seeds and intervals of {100 * LOOK_LEVEL:.1f} %. {text}"
    elif study.tuned:
        texts[study.name] = f"At one rate, which decides nothing between methods. {texts[study.name]}"
    return texts


def total_cost(studies: Iterable[Study], results: Results) -> str:
    """One sentence: the CPU time of all runs of all studies. A run without a result costs the mean of its part."""
    seconds = dict[StudyRun, float]()
    unknown = set[StudyRun]()
    chosen = list(studies)
    listed = [study.trials(SEEDS, [part]) for study in chosen for part in study.parts]
    for trials in [*listed, *(tuned_runs(study, results) for study in chosen)]:
        stored = [results[trial].cpu_seconds for trial in trials if trial in results]
        if stored:
            mean = math.fsum(stored) / len(stored)
            seconds |= {trial: results[trial].cpu_seconds if trial in results else mean for trial in trials}
        else:
            unknown |= trials.keys()
    unknown -= seconds.keys()
    made, minutes = sum(trial in results for trial in seconds), math.fsum(seconds.values()) / 60
    others = "all are stored." if made == len(seconds) else f"{made} are stored, others count with their part's mean."
    more = f" The cost of {len(unknown)} further runs is not known: none has been made." if unknown else ""
    cost = f"{len(seconds)} runs, which take {minutes:.0f} CPU minutes without the warm starts"
    return f"All studies together are {cost}; {others}{more}"


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """The text with the part between the marks of each block replaced. Each mark has its own line.

    >>> filled("a\\n<!-- table -->\\nold\\n<!-- /table -->\\n", {"table": "new"})
    'a\\n<!-- table -->\\nnew\\n<!-- /table -->\\n'
    """
    for name, block in blocks.items():
        between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        text = between.sub(lambda _, block=block: f"{block}\n", text)
    return text


def csv_text(rows: list[tuple[object, ...]]) -> str:
    """Rows as CSV, with six significant digits."""
    text = io.StringIO()
    cells = ([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def read_exact(home: Path) -> dict[str, Exact]:
    """The stored results of the exact parts, by study."""
    path = home / EXACT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def store_exact(name: str, exact: Exact, home: Path) -> None:
    """Store the results of a study's exact part, with six significant digits. A study without one stores nothing."""
    if exact:
        text = json.dumps({**read_exact(home), name: _rounded(exact)})
        (home / EXACT).parent.mkdir(parents=True, exist_ok=True)
        (home / EXACT).write_text(f"{text}\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}")
