"""Write benchmarks/RESULTS.md, its pictures and the README's line from the raw measurements."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.trl_comparison import appendix, tables
from benchmarks.trl_comparison.chart import Axis, chart, decades
from benchmarks.trl_comparison.pairs import counted, per_iteration, ratio, spread
from benchmarks.trl_comparison.paths import HOME
from benchmarks.trl_comparison.regimes import REGIMES, STORED, Regime
from benchmarks.trl_comparison.results import Results

OPEN, CLOSE = "<!-- trl -->", "<!-- /trl -->"
SHOWN = "abc"
"""The regimes in the README."""
INTRODUCTION = """\
# Groupwise compared with TRL

`make bench` runs Groupwise and TRL's `GRPOTrainer` on equal work and writes this page; `make bench-full` measures
all of it. This repeats one figure: `python -m benchmarks.trl_comparison a --pairs 1`. Raw measurements are in
[results.json](results.json), the workloads in [regimes.py](trl_comparison/regimes.py), TRL's whole configuration in
[settings.py](trl_comparison/settings.py).

Equal are the model files, the prompts and their order, the group size, the objective and AdamW with its constants. Both
use float32, without evaluation; import and load times are excluded. In (a) and (e) samples end by themselves, and times
are per trained token. In the other regimes both systems get the same forced lengths. Groupwise runs like `groupwise
train`, including its logs of samples and metrics; TRL logs and saves nothing. Memory is the peak up to the end of the
last iteration, above the imports. glibc keeps freed memory in both; otherwise TRL loses a third of (d) to page faults,
and Groupwise a tenth.

Two processes of one thread each take turns on one core. Each starts and warms up once, and waits while the other
computes. In (a) and (e) each pair of turns uses two new processes, because a model that has learned longer generates
other lengths. A GEMM probe runs before and after each pair. If its two results differ by more than 15 %, the pair is
repeated, at most three times per regime. A ratio is TRL's time over Groupwise's: the median of the pairs, with minimum
and maximum.
"""
LEARN = """\
Mean reward of each iteration's samples over 60 iterations, three seeds per system: first (a), then (e).

![(a): mean reward over iterations, three seeds each](trl_comparison/reward-a.svg)

![(e): mean reward over iterations, three seeds each](trl_comparison/reward-e.svg)
"""
GROWN = """\
Groupwise alone on a small model, one size doubled four times. The exponent is the slope of a straight line through the
logarithms of the times. The next column is the same slope for the FLOPs, including attention's. If the time's exponent
is not larger, the implementation adds no growth.

![Seconds per iteration as one size doubles four times](trl_comparison/growth.svg)
"""
PINNED_TEXT = """\
Two prompts of 64 tokens, 16 answers each of 8 to 128 tokens (median 32), 10M parameters, on two cores. With
`cluster.max_staleness = 1`, two engines, each a process of one thread, sample the next iteration while the learner
takes the steps of the present one. The other configurations of Groupwise sample, then learn. All have the same forced
lengths.
This repeats it: `python -m benchmarks.trl_comparison h --pairs 5`.

TRL's vLLM server is not in the table, since it needs a GPU: without one, TRL 1.16 sends no weights to it
(`VLLMClient.init_communicator`: "Weight synchronization runs on vLLM's NCCL weight-transfer engine, which needs a CUDA
device"). So TRL generates by itself, as in the other regimes.
"""
STORED_TEXT = """\
Demonstrations and preference pairs beside TRL's `SFTTrainer` and `DPOTrainer`: 10M parameters (the model of (h)),
prompts of 64 tokens, answers of 8 to 128 tokens (median 32), which end with the end token. The rows, their order, the
optimizer and the losses are equal: a pair is refused if a step has other trained tokens, or another loss by more than
1e-4. (dpo) has beta 0.1 and computes the reference's log-probs in each step, in both systems. TRL has its fastest
micro-batch, one row (table below). Groupwise has microbatches of 1,024 tokens: its time depends little on them, its
memory does (with the default of 16,384 tokens 1,198 MiB in (sft) and 896 in (dpo)). This repeats it:
`python -m benchmarks.trl_comparison sft dpo`.
"""
NO_GPU = "On a GPU: *not measured*; no CUDA device was available."


def page(results: Results, notes: str) -> str:
    """The whole of RESULTS.md."""
    parts = [INTRODUCTION]
    pairs = {letter: results[letter]["data"] for letter in REGIMES if letter in results}
    if pairs:
        parts += ["## One core\n", tables.ratios(pairs), stamps(results, pairs)]
        parts += ["## By phase\n", tables.phases(pairs), "## Distance to the machine's limits\n", tables.limits(pairs)]
        parts += ["## Start\n", tables.start(pairs)]
    if answered := {name: results[name]["data"] for name in STORED if name in results}:
        parts += [f"## Stored answers\n\n{STORED_TEXT}", appendix.stored(answered), stamps(results, answered)]
    for name, head, text in (
        ("h", f"## Two engines and a pinned learner\n\n{PINNED_TEXT}", appendix.pinned),
        ("two", "## Two cores, each system in its fastest configuration\n", appendix.two),
        ("sweep", "## TRL's micro-batch\n", appendix.sweep),
        ("stored_sweep", "## TRL's micro-batch with stored answers, in rows\n", appendix.sweep),
        ("frugal", "## TRL with gradient checkpointing\n", lambda data: appendix.frugal(data, pairs)),
        ("growth", f"## Growth\n\n{GROWN}", appendix.growth),
        ("curves", f"## Both learn\n\n{LEARN}", appendix.curves),
    ):
        if name in results:
            parts += [head, text(results[name]["data"]), stamps(results, [name])]
        elif name == "h":
            parts += [head, "*Not measured.*\n"]
    parts += ["## GPU\n", NO_GPU + "\n"]
    parts += ["## Notes\n", notes.strip() + "\n"] if notes else []
    parts += ["## Settings\n", appendix.settings(REGIMES.values(), pairs)]
    return "\n".join(parts)


def stamps(results: Results, names: Iterable[str]) -> str:
    """Date, commit and machine of the sections; equal ones share a line."""
    groups: dict[str, list[str]] = {}
    for name in names:
        at = results[name]
        stamp = f"{at['date']}, commit {at['commit']}, {at['cpu']}, {at['cores']} cores"
        groups.setdefault(stamp, []).append(f"({name})" if name in REGIMES | STORED else name)
    return "\n".join(f"Measured {stamp}: {', '.join(who)}.\n" for stamp, who in groups.items())


def summary(regime: Regime, data: dict[str, Any]) -> str:
    """One line of results for a regime."""
    sound = counted(data["pairs"])
    middle, least, most = spread([ratio(regime, pair) for pair in sound])
    cpu = median(ratio(regime, pair, "cpu") for pair in sound)
    ours, theirs = (median(per_iteration(regime, pair[who]) for pair in sound) for who in ("groupwise", "trl"))
    target = f", target {regime.target:g}" if regime.target else ""
    return (
        f"({regime.letter}) {middle:.2f}x [{least:.2f} .. {most:.2f}], by CPU {cpu:.2f}x{target}: "
        f"{ours:.2f} s per iteration, TRL {theirs:.2f} s"
    )


def excerpt(results: Results) -> str:
    """The README's line: the least and the largest ratio of the regimes in `SHOWN`."""
    ratios = [
        spread([ratio(REGIMES[letter], pair) for pair in counted(results[letter]["data"]["pairs"])])[0]
        for letter in SHOWN
        if letter in results
    ]
    bounds = f"{min(ratios):.1f} to {max(ratios):.1f}"
    return f"TRL takes {bounds} times as long for equal work on one core ([`make bench`](benchmarks/RESULTS.md))."


def between(text: str, part: str) -> str:
    """The text with the part between the README's two marks replaced.

    >>> between("a <!-- trl -->old<!-- /trl --> b", "new")
    'a <!-- trl -->\\nnew\\n<!-- /trl --> b'
    """
    head, rest = text.split(OPEN)
    return f"{head}{OPEN}\n{part}\n{CLOSE}{rest.split(CLOSE)[1]}"


def write(results: Results, home: Path = HOME) -> list[Path]:
    """Write all pages and pictures; returns their paths."""
    benchmarks = home / "benchmarks"
    texts = {benchmarks / "RESULTS.md": page(results, notes(home))}
    pictures = benchmarks / "trl_comparison"
    if "growth" in results:
        texts[pictures / "growth.svg"] = growth_picture(results["growth"]["data"])
    for letter, rewards in results.get("curves", {"data": {}})["data"].items():
        texts[pictures / f"reward-{letter}.svg"] = reward_picture(letter, rewards)
    if all(letter in results for letter in SHOWN):
        texts[home / "README.md"] = between((home / "README.md").read_text(), excerpt(results))
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def notes(home: Path = HOME) -> str:
    """The hand-written `benchmarks/notes.md`: missed targets, gains of optimisations."""
    path = home / "benchmarks" / "notes.md"
    return path.read_text() if path.is_file() else ""


def growth_picture(data: dict[str, Any]) -> str:
    """Seconds per iteration over the growth of a size, both relative to the smallest and logarithmic."""
    lines = {axis: appendix.grown(axis, runs)[0] for axis, runs in data.items()}
    factors = [1, 2, 4, 8, 16]
    steps = decades(0.9, max(y / line[0] for line in lines.values() for y in line))
    across = Axis("size, relative", factors, log=True, low=1, high=16)
    up = Axis("time, relative", steps, log=True, low=steps[0], high=steps[-1])
    kinds = ("ours", "theirs", "ours thin", "theirs thin")
    drawn: list[tuple[str, Sequence[tuple[float, float]]]] = [("even", [(1, 1), (16, 16)])] if steps[-1] >= 16 else []
    drawn += [(k, [(f, y / line[0]) for f, y in zip(factors, line)]) for k, line in zip(kinds, lines.values())]
    key = dict(zip(kinds, lines)) | ({"even": "proportional"} if steps[-1] >= 16 else {})
    return chart("Seconds per iteration as one size doubles four times", across, up, drawn, key)


def reward_picture(letter: str, data: dict[str, list[list[float]]]) -> str:
    """Mean reward over iterations: each seed thin, each system's mean thick."""
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
