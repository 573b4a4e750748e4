"""`groupwise sweep`: train one run for each combination of some fields' values, one after another."""

import itertools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from groupwise.api.options import RunOptions
from groupwise.commands.sweep_table import SweepResult, run_rows, seed_rows
from groupwise.commands.terminal_tables import aligned
from groupwise.commands.train import resume, train
from groupwise.config.user_code import Permissions
from groupwise.core import Diverged, Usage, each_line_once, visible
from groupwise.report.read_run import read
from groupwise.report.report import write_report
from groupwise.runs.find_run import newest_run
from groupwise.runs.phase_directories import phase_directories
from groupwise.runs.run_layout import RunLayout

RANGE = re.compile(r"(\d+)\.\.(\d+)")
MOST = 10_000
"""The most runs of a sweep. A larger number is probably a typing error, such as the range 0..40000."""


@dataclass(frozen=True, slots=True)
class SweepCombination:
    """One run of a sweep: its recipe overrides, and its values of the fields that differ between runs."""

    overrides: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The name of the run, from the last words of the fields: `seed-0.high-0.2`."""
        words = (f"{path.rpartition('.')[2]}-{value}" for path, value in self.values)
        return re.sub(r"[^A-Za-z0-9._-]+", "-", ".".join(words)) or "run"


def sweep(
    recipe: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    allowed: Permissions = Permissions(),  # noqa: B008
    *,
    recipe_name: str | None = None,
    out: str | None = None,
) -> int:
    """Train each combination under the directory `out`, then print a table and write one report about all runs.

    Finished runs are skipped and an interrupted one is resumed, so that the same command continues a sweep. A run that
    diverges does not end the sweep; another error does. Returns the exit code.
    """
    directory = Path(out or f"sweeps/{recipe_name or (Path(recipe).stem if recipe else 'default')}")
    all_runs = combinations(overrides)
    if len(all_runs) == 1:
        print("note: no field has several values, so this sweep is one run; write values as --seed 0..4 or --seed 1,2")
    with each_line_once():
        for index, combination in enumerate(all_runs, 1):
            print(visible(f"-- run {index} of {len(all_runs)}: {combination.name}"), flush=True)
            code = train_one(recipe, recipe_name, combination, directory, allowed)
            if code not in (0, Diverged.code):
                return code
    results = results_of(directory, all_runs)
    tables = {"Runs": run_rows(results)} | ({"Seeds": rows} if (rows := seed_rows(results)) else {})
    print(visible("\n\n".join("\n".join(aligned(rows)) for rows in tables.values()), lines=True))
    report = write_report([result.run.path for result in results], RunLayout(directory).report, tables)
    print(visible(f"report: {report}"))
    return 0


def train_one(
    recipe: str | None, recipe_name: str | None, combination: SweepCombination, directory: Path, allowed: Permissions
) -> int:
    """Train or continue one run of a sweep, unless it is finished. Returns its exit code."""
    words = [word for path, value in combination.overrides for word in (f"--{path}", value)]
    named = ["--recipe", recipe_name] if recipe_name else [recipe] if recipe else []
    command = shlex.join(["groupwise", "train", *named, *words])
    run = existing(directory, combination, command)
    try:
        if run is None:
            options = RunOptions(permissions=allowed, out=directory, name=combination.name, command_line=command)
            return train(recipe, combination.overrides, options, recipe_name=recipe_name)
        return 0 if is_finished(run) else resume(str(run), RunOptions(permissions=allowed, command_line=command))
    except Diverged as error:
        print(visible(str(error), lines=True))
        return error.code


def combinations(overrides: Sequence[tuple[str, str]]) -> list[SweepCombination]:
    """All combinations of the values of the overrides; the last field changes fastest. Raises `Usage`.

    >>> [c.name for c in combinations([("seed", "0..1"), ("optimizer.lr", "1e-5,1e-4"), ("prompts", "8")])]
    ['seed-0.lr-1e-5', 'seed-0.lr-1e-4', 'seed-1.lr-1e-5', 'seed-1.lr-1e-4']
    """
    values = {path: values_of(text) for path, text in overrides}
    swept = [path for path, texts in values.items() if len(texts) > 1]
    if (count := math.prod(map(len, values.values()))) > MOST:
        raise Usage(f"the sweep has {count} runs", evidence=f"the limit is {MOST} runs", fix="sweep fewer values")
    found = []
    for texts in itertools.product(*values.values()):
        chosen = dict(zip(values, texts))
        found.append(SweepCombination(tuple(chosen.items()), tuple((path, chosen[path]) for path in swept)))
    if len({c.name for c in found}) < len(found):
        raise Usage(
            "two runs of the sweep would have the same name",
            fix="write each value once; in a name '-' replaces all but letters, digits, '.', '_' and '-'",
        )
    return found


def values_of(text: str) -> tuple[str, ...]:
    """Parse the values of an option to sweep: `a,b,c`, a range of whole numbers `0..4`, or a single value.

    A list, a table or a quoted text is a single value.

    >>> values_of("0..2,7"), values_of("0.2,0.28"), values_of('["a", "b"]')
    (('0', '1', '2', '7'), ('0.2', '0.28'), ('["a", "b"]',))
    """
    if text[:1] in ("[", "{", '"', "'"):
        return (text,)
    values: list[str] = []
    for part in text.split(","):
        bounds = RANGE.fullmatch(part.strip())
        if bounds and int(bounds[2]) - int(bounds[1]) >= MOST:
            raise Usage(f"the sweep has {int(bounds[2]) - int(bounds[1]) + 1} runs", fix="sweep fewer values")
        values += map(str, range(int(bounds[1]), int(bounds[2]) + 1)) if bounds else [part.strip()]
    return tuple(values)


def run_of(directory: Path, combination: SweepCombination) -> Path | None:
    """The newest run of a combination in a sweep's directory; None if there is none."""
    stem = str(directory / combination.name)
    return None if (run := newest_run(stem)) == stem else Path(run)


def existing(directory: Path, combination: SweepCombination, command: str) -> Path | None:
    """The newest run of a combination, or None. `Usage` if another command started it."""
    if (run := run_of(directory, combination)) is None:
        return None
    if (started := str(read(run).run_info.get("command", ""))) != command:
        raise Usage(
            f"{run} belongs to another sweep",
            evidence=f"it was started as: {started}\nthis sweep would start: {command}",
            fix="name another directory: --out DIR",
        )
    return run


def is_finished(run: Path) -> bool:
    """Whether a run, or each of its phases, is finished: it has a model directory, which is written at its end."""
    return all(RunLayout(path).model.is_dir() for path in phase_directories(run) or (run,))


def results_of(directory: Path, all_runs: Sequence[SweepCombination]) -> list[SweepResult]:
    """The results of the sweep's runs so far, for its tables."""
    runs = [(combination.values, run_of(directory, combination)) for combination in all_runs]
    return [SweepResult(values, read(run), is_finished(run)) for values, run in runs if run]
