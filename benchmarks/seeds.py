"""Run the packaged recipe once per seed, and write benchmarks/SEEDS.md with its curve.

`make seeds` runs all ten. `make laptop` runs other recipes with three seeds each, for docs/laptop.md. A trial run,
which changes no page:

    python benchmarks/seeds.py --only 0 1 --iterations 3 --out runs/try
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curve import draw, evaluations

HOME = Path(__file__).resolve().parents[1]
SEEDS, SHOWN, FEW = range(10), range(5), range(3)
"""All seeds, the seeds of the curve, and the seeds of other recipes. They were fixed before any run."""
ENOUGH = 0.85
"""Greedy held-out accuracy that each seed should reach."""
HEAD = ("seed", "greedy before", "greedy after", "sampled before", "sampled after", "length before", "length after",
        "seconds")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One seed's run: its directory, its held-out metrics before the first and after the last iteration, its time."""

    seed: int
    directory: Path
    first: dict[str, float]
    last: dict[str, float]
    seconds: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """The cells of the row, in the order of `HEAD` without the seed."""
        names = ("eval/accuracy_greedy", "eval/accuracy", "eval/mean_length")
        return (*(end[name] for name in names for end in (self.first, self.last)), self.seconds)

    @property
    def reached(self) -> float:
        return self.last["eval/accuracy_greedy"]


def train(seed: int, out: Path, iterations: int | None, recipe: Path | None = None) -> Run:
    """Run `groupwise train` with a seed, and time the command."""
    arguments = ["--evaluate.every", "10"] if recipe is None else [str(recipe)]
    command = ["groupwise", "train", "--seed", str(seed), "--name", f"seed-{seed}", *arguments]
    command += ["--out", str(out)] + (["--iterations", str(iterations)] if iterations is not None else [])
    before = set(out.glob(f"seed-{seed}-*"))
    start = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    seconds = time.perf_counter() - start
    new = sorted(set(out.glob(f"seed-{seed}-*")) - before)
    if code or not new:
        raise SystemExit(f"seed {seed} ended with exit code {code}: {' '.join(command)}")
    return Run(seed, new[-1], *ends(new[-1]), seconds)


def ends(run: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The first and the last evaluation in a run's metrics."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval/accuracy_greedy" in line]
    return evaluated[0], evaluated[-1]


def table(runs: Sequence[Run], more: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """A Markdown table: one row per run, then the rows `more`."""
    rows = [(str(run.seed), run.numbers) for run in runs] + list(more)
    return ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), *(line(*row) for row in rows)]


def line(label: str, numbers: Sequence[float]) -> str:
    digits = (3, 3, 3, 3, 1, 1, 0)
    return "| " + " | ".join([label, *(f"{x:.{d}f}" for x, d in zip(numbers, digits))]) + " |"


def over(runs: Sequence[Run], f: Callable[[Sequence[float]], float]) -> tuple[float, ...]:
    return tuple(f(column) for column in zip(*(run.numbers for run in runs)))


def summary(runs: Sequence[Run]) -> list[tuple[str, tuple[float, ...]]]:
    """Mean, minimum, and spread (maximum - minimum) of each column."""
    return [
        ("mean", over(runs, lambda x: sum(x) / len(x))),
        ("least", over(runs, min)),
        ("spread", over(runs, lambda x: max(x) - min(x))),
    ]


def taken(about: dict[str, Any]) -> str:
    """Date, machine and versions, from run.json."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, 1 thread, {versions}."


def page(runs: Sequence[Run], about: dict[str, Any]) -> str:
    """The text of `SEEDS.md`: each seed, summary rows, date and machine."""
    low = [f"{run.seed} ({run.reached:.3f})" for run in runs if run.reached < ENOUGH]
    verdict = f"seeds that end below {ENOUGH} greedy: {', '.join(low) or 'none'}"
    return "\n".join(
        [
            "# Seeds of the packaged recipe",
            "",
            "Written by `make seeds`, which runs `groupwise train --seed N --name seed-N --evaluate.every 10` for one",
            f"seed after the other; {about['iterations']} iterations each. Accuracies are on held-out problems.",
            "Lengths are mean tokens of sampled answers. Seconds cover the whole command, including start and",
            "evaluations. Spread is maximum - minimum.",
            "",
            *table(runs, summary(runs)),
            "",
            "![Greedy held-out accuracy over iterations, five seeds and their mean](../docs/curve.svg)",
            "",
            "Held-out accuracy for seeds 0 to 4 (thin) and their mean (thick).",
            "",
            f"Of {len(runs)}, {verdict}.",
            "",
            taken(about),
            "",
        ]
    )


def between(text: str, part: str, name: str = "seeds") -> str:
    """The text with the part between the two marks of that name replaced.

    >>> between("a <!-- seeds -->old<!-- /seeds --> b", "new")
    'a <!-- seeds -->\\nnew\\n<!-- /seeds --> b'
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{part}\n{end}{tail}"


def other(recipe: Path, only: Sequence[int] | None, iterations: int | None, out: Path) -> None:
    """Run another recipe; write its table and curve to docs/laptop.md, or next to the runs for a trial run."""
    runs = [train(seed, out / recipe.stem, iterations, recipe) for seed in only or FEW]
    about = json.loads((runs[0].directory / "run.json").read_text())
    mean, _, spread = summary(runs)
    part = "\n".join([*table(runs, [mean, spread]), "", f"From `make laptop`: {taken(about)}"])
    trial = only is not None or iterations is not None
    docs = HOME / "docs"
    picture = (out if trial else docs) / f"{recipe.stem}.svg"
    picture.write_text(draw([evaluations(run.directory) for run in runs]))
    if not trial:
        (docs / "laptop.md").write_text(between((docs / "laptop.md").read_text(), part, recipe.stem))
    print(f"{part}\n{picture}", flush=True)


def packaged(only: Sequence[int] | None, iterations: int | None, out: Path) -> None:
    """Run the packaged recipe; write SEEDS.md and its curve, or both next to the runs for a trial run."""
    trial = only is not None or iterations is not None
    runs = []
    for seed in only or SEEDS:
        runs.append(train(seed, out, iterations))
        print(line(str(seed), runs[-1].numbers), flush=True)
    pages, picture = (out, out / "curve.svg") if trial else (HOME / "benchmarks", HOME / "docs" / "curve.svg")
    about = json.loads((runs[0].directory / "run.json").read_text())
    (pages / "SEEDS.md").write_text(page(runs, about))
    picture.write_text(draw([evaluations(run.directory) for run in runs if trial or run.seed in SHOWN]))
    print(f"{pages / 'SEEDS.md'}\n{picture}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a recipe once per seed and write its table and curve.")
    parser.add_argument("recipe", type=Path, nargs="*", help="recipes other than the packaged one, for docs/laptop.md")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="run only these seeds; changes no page")
    parser.add_argument("--iterations", type=int, help="instead of the recipe's; changes no page")
    parser.add_argument("--out", type=Path, default=HOME / "runs" / "seeds", help="directory for the runs")
    a = parser.parse_args(argv)
    for recipe in a.recipe:
        other(recipe, a.only, a.iterations, a.out)
    if not a.recipe:
        packaged(a.only, a.iterations, a.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
