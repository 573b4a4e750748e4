"""benchmarks/RESULTS.md, its pictures and README's three lines, all from the raw measurements."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.beside import appendix, tables
from benchmarks.beside.chart import Axis, chart, decades
from benchmarks.beside.files import HOME
from benchmarks.beside.pairs import counted, per_iteration, ratio, spread
from benchmarks.beside.regimes import REGIMES, Regime
from benchmarks.beside.results import Results

OPEN, CLOSE = "<!-- beside -->", "<!-- /beside -->"
SHOWN = "abc"
"""The regimes of README."""
INTRODUCTION = """\
# Groupwise beside TRL

`make bench` runs Groupwise and TRL's `GRPOTrainer` on the same work and writes this page; `make bench-full` measures
all of it. One doubtful figure is one line: `python -m benchmarks.beside a --pairs 1`. Raw measurements are in
[results.json](results.json), the works in [beside/regimes.py](beside/regimes.py), TRL's whole configuration in
[beside/settings.py](beside/settings.py).

The same work: the same model files, prompts in the same order, group size, objective, AdamW with the same constants,
float32, evaluation off, import and load apart. In (a) and (e) answers end by themselves and times are compared for each
trained token; elsewhere every answer has a length that both are given. Groupwise runs as `groupwise train` does, its
record of samples and metrics included; TRL logs and saves nothing. Memory is the peak up to the end of the last
iteration, above what the imports hold. Both run with glibc told to keep freed memory: without that TRL loses a third
of (d) to page faults, and Groupwise a tenth.

Two processes of one thread each, pinned to one core, take turns: each starts and warms up once, and waits while the
other computes. In (a) and (e), where what has learned for longer answers otherwise, each pair of turns is of two new
processes. A GEMM probe stands before and after each pair, and a pair whose probes differ by more than 15 % is repeated,
at most three times a regime. A ratio is TRL's time over Groupwise's: the median of the pairs, with least and most.
"""
LEARN = """\
Mean reward of each iteration's samples over 60 iterations, three seeds a system, above for (a) and below for (e).

![(a): mean reward over iterations, three seeds each](beside/reward-a.svg)

![(e): mean reward over iterations, three seeds each](beside/reward-e.svg)
"""
GROWN = """\
Groupwise alone on a small model, one size doubled four times. The exponent is the slope of a straight line through the
logarithms of the times; beside it the same slope for the FLOPs that the work asks for, attention's among them. A time
that grows no faster than its FLOPs has no excess of its own.

![Seconds an iteration as one size doubles four times](beside/growth.svg)
"""
NO_GPU = "On a GPU: *not measured*; no CUDA device was at hand."


def page(results: Results, noted: str) -> str:
    """The whole of RESULTS.md."""
    parts = [INTRODUCTION]
    pairs = {letter: results[letter]["data"] for letter in REGIMES if letter in results}
    if pairs:
        parts += ["## One core\n", tables.ratios(pairs), stamps(results, pairs)]
        parts += ["## By phase\n", tables.phases(pairs), "## Distance to the machine's limits\n", tables.limits(pairs)]
        parts += ["## Start\n", tables.start(pairs)]
    for name, head, text in (
        ("two", "## Two cores, each system in its own best way\n", appendix.two),
        ("sweep", "## TRL's micro-batch\n", appendix.sweep),
        ("frugal", "## TRL where memory is scarce\n", lambda data: appendix.frugal(data, pairs)),
        ("growth", f"## Growth\n\n{GROWN}", appendix.growth),
        ("curves", f"## Both learn\n\n{LEARN}", appendix.curves),
    ):
        if name in results:
            parts += [head, text(results[name]["data"]), stamps(results, [name])]
    parts += ["## GPU\n", NO_GPU + "\n"]
    parts += ["## Notes\n", noted.strip() + "\n"] if noted else []
    parts += ["## Settings\n", appendix.settings(REGIMES.values(), pairs)]
    return "\n".join(parts)


def stamps(results: Results, names: Iterable[str]) -> str:
    """Where and when sections were measured, those alike together."""
    alike: dict[str, list[str]] = {}
    for name in names:
        at = results[name]
        told = f"{at['date']}, commit {at['commit']}, {at['cpu']}, {at['cores']} cores"
        alike.setdefault(told, []).append(f"({name})" if name in REGIMES else name)
    return "\n".join(f"Measured {told}: {', '.join(who)}.\n" for told, who in alike.items())


def summary(regime: Regime, data: dict[str, Any]) -> str:
    """One regime in a line."""
    sound = counted(data["pairs"])
    middle, least, most = spread([ratio(regime, pair) for pair in sound])
    cpu = median(ratio(regime, pair, "cpu") for pair in sound)
    ours, theirs = (median(per_iteration(regime, pair[who]) for pair in sound) for who in ("groupwise", "trl"))
    return (
        f"({regime.letter}) {middle:.2f}x [{least:.2f} .. {most:.2f}], by CPU {cpu:.2f}x, target {regime.target:g}: "
        f"{ours:.2f} s an iteration, TRL {theirs:.2f} s"
    )


def excerpt(results: Results) -> str:
    """README's part."""
    rows = []
    for letter in SHOWN:
        if letter in results:
            regime, data = REGIMES[letter], results[letter]["data"]
            middle, least, most = spread([ratio(regime, pair) for pair in counted(data["pairs"])])
            rows.append(f"| {regime.title} | {middle:.1f} | {least:.1f} .. {most:.1f} |")
    head = ["| the same work on one core | time of TRL / time of Groupwise | range |", "|---|---|---|"]
    tail = "From `make bench`; how, and all the others, in [benchmarks/RESULTS.md](benchmarks/RESULTS.md)."
    return "\n".join([*head, *rows, "", tail])


def between(text: str, part: str) -> str:
    """The text with what stands between README's two marks replaced.

    >>> between("a <!-- beside -->old<!-- /beside --> b", "new")
    'a <!-- beside -->\\nnew\\n<!-- /beside --> b'
    """
    head, rest = text.split(OPEN)
    return f"{head}{OPEN}\n{part}\n{CLOSE}{rest.split(CLOSE)[1]}"


def write(results: Results, home: Path = HOME) -> list[Path]:
    """Everything that the measurements say, and where it was written."""
    benchmarks = home / "benchmarks"
    written = {benchmarks / "RESULTS.md": page(results, notes(home))}
    pictures = benchmarks / "beside"
    if "growth" in results:
        written[pictures / "growth.svg"] = growth_picture(results["growth"]["data"])
    for letter, rewards in results.get("curves", {"data": {}})["data"].items():
        written[pictures / f"reward-{letter}.svg"] = reward_picture(letter, rewards)
    if all(letter in results for letter in SHOWN):
        written[home / "README.md"] = between((home / "README.md").read_text(), excerpt(results))
    for path, text in written.items():
        path.write_text(text)
    return list(written)


def notes(home: Path = HOME) -> str:
    """What `benchmarks/notes.md` says by hand: why a target is missed, what an optimisation gained."""
    path = home / "benchmarks" / "notes.md"
    return path.read_text() if path.is_file() else ""


def growth_picture(data: dict[str, Any]) -> str:
    """Seconds an iteration over the factor by which a size has grown, relative to the smallest; both logarithmic."""
    lines = {axis: appendix.grown(axis, runs)[0] for axis, runs in data.items()}
    factors = [1, 2, 4, 8, 16]
    steps = decades(0.9, max(y / line[0] for line in lines.values() for y in line))
    across = Axis("times as large", factors, log=True, low=1, high=16)
    up = Axis("times as long", steps, log=True, low=steps[0], high=steps[-1])
    kinds = ("ours", "theirs", "ours thin", "theirs thin")
    drawn: list[tuple[str, Sequence[tuple[float, float]]]] = [("even", [(1, 1), (16, 16)])] if steps[-1] >= 16 else []
    drawn += [(k, [(f, y / line[0]) for f, y in zip(factors, line)]) for k, line in zip(kinds, lines.values())]
    key = dict(zip(kinds, lines)) | ({"even": "in proportion"} if steps[-1] >= 16 else {})
    return chart("Seconds an iteration as one size doubles four times", across, up, drawn, key)


def reward_picture(letter: str, data: dict[str, list[list[float]]]) -> str:
    """Mean reward over iterations, each seed thin and each system's mean thick."""
    kinds = {"groupwise": "ours", "trl": "theirs"}
    last = len(data["groupwise"][0])
    across, up = Axis("iteration", range(0, last + 1, 10), high=last), Axis("mean reward", [0, 0.2, 0.4, 0.6, 0.8, 1])

    def line(rewards: Iterable[float]) -> list[tuple[float, float]]:
        return [(float(i), r) for i, r in enumerate(rewards, 1)]

    drawn = [(f"{kinds[who]} thin", line(seed)) for who, seeds in data.items() for seed in seeds]
    mean: Callable[[Sequence[float]], float] = lambda x: sum(x) / len(x)  # noqa: E731
    drawn += [(kinds[who], line(map(mean, zip(*seeds)))) for who, seeds in data.items()]
    names = {kinds[who]: appendix.NAMES[who] for who in data}
    return chart(f"({letter}): mean reward over iterations", across, up, drawn, names, low=True)
