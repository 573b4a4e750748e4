"""The tables of RESULTS.md on `make bench`, each from the measurements that it shows."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

from benchmarks.beside import work
from benchmarks.beside.pairs import Run, above, close, counted, per_iteration, per_token, phase, ratio, spread, timed
from benchmarks.beside.regimes import REGIMES, Regime

Data = dict[str, Any]
BOTH = ("groupwise", "trl")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(("a", "b"), [("1", "2")]), end="")
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def over(data: Data, who: str, f: Callable[[Run], float]) -> float:
    """The median over a system's runs."""
    return median(f(pair[who]) for pair in counted(data["pairs"]))


def met(reached: bool) -> str:
    return "yes" if reached else "**no**"


def ratios(pairs: dict[str, Data]) -> str:
    """Times and peaks of both, and whether the targets are met."""
    rows = []
    for letter, data in pairs.items():
        one = REGIMES[letter]
        middle, least, most = spread([ratio(one, pair) for pair in counted(data["pairs"])])
        million = [f"{1e6 * over(data, who, partial(per_token, one)):.0f}" for who in BOTH]
        seconds = [f"{over(data, who, partial(per_iteration, one)):.2f}" for who in BOTH]
        peaks = [over(data, who, above) for who in BOTH]
        memory = peaks[0] / peaks[1]
        limit = f" (<= {one.memory:g}: {met(memory <= one.memory)})" if one.memory else ""
        cpu = median(ratio(one, pair, "cpu") for pair in counted(data["pairs"]))
        used = counted(data["pairs"])
        loose = sum(not close(pair) for pair in used)
        count = f"{len(used)} + {len(data['pairs']) - len(used)}" + (
            f", {loose} between unequal probes" if loose else ""
        )
        rows.append(
            (
                f"({letter}) {one.title}", f"**{middle:.2f}** [{least:.2f} .. {most:.2f}]", f"{cpu:.2f}",
                f"{one.target:g}: {met(middle >= one.target)}", " / ".join(seconds), " / ".join(million),
                f"{peaks[0]:.0f} / {peaks[1]:.0f} = {memory:.2f}{limit}", count,
            )
        )  # fmt: skip
    head = ("regime", "ratio of times", "of CPU seconds", "target", "s an iteration", "s a million trained tokens",
            "peak above imports, MiB", "pairs + repeated")  # fmt: skip
    told = "Where two numbers stand beside each other, the first is Groupwise's and the second TRL's."
    return f"{table(head, rows)}\n{told}\n"


def phases(pairs: dict[str, Data]) -> str:
    """Tokens a second in sampling and in all that is not sampling."""

    rows = []
    for letter, data in pairs.items():
        row = [f"({letter})"]
        for f in (sampled, learned):
            ours, theirs = (over(data, who, partial(f, REGIMES[letter])) for who in BOTH)
            row += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
        rows.append(row)
    head = ("regime", "sampling, Groupwise", "TRL", "ratio", "learning, Groupwise", "TRL", "ratio")
    told = "Trained tokens a second. Sampling ends with the verdicts; learning is all the rest of an iteration."
    return f"{table(head, rows)}\n{told}\n"


def sampled(one: Regime, run: Run) -> float:
    """Trained tokens a second of sampling."""
    return tokens(one, run) / phase(one, "sample", run)


def learned(one: Regime, run: Run) -> float:
    """Trained tokens a second of all that is not sampling."""
    return tokens(one, run) / (per_iteration(one, run) - phase(one, "sample", run))


def tokens(one: Regime, run: Run) -> float:
    """Trained tokens of an iteration."""
    return mean(iteration["tokens"] for iteration in timed(one, run))


def limits(pairs: dict[str, Data]) -> str:
    """How far Groupwise is from what the core can do, where lengths are forced and work can be counted."""
    rows = []
    for letter, data in pairs.items():
        if "limits" not in data:
            continue
        one, most = REGIMES[letter], data["limits"]
        sample = over(data, "groupwise", partial(phase, one, "sample"))
        learn = over(data, "groupwise", partial(phase, one, "learn"))
        learner, engine = (work.learner(one).all / learn / 1e9, work.engine(one).all / sample / 1e9)
        traffic = work.traffic(one) / sample / 1e9
        rows.append(
            (
                f"({letter})", f"{most['gflops']:.0f}", f"{learner:.0f}", f"{learner / most['gflops']:.0%}",
                f"{engine:.0f}", f"{engine / most['gflops']:.0%}", f"{most['read']:.1f}", f"{traffic:.1f}",
                f"{traffic / most['read']:.0%}",
            )
        )  # fmt: skip
    head = ("regime", "GEMM peak, GFLOP/s", "learner", "share", "engine", "share", "reading memory, GB/s",
            "engine's weights", "share")  # fmt: skip
    told = (
        "The peak is the fastest float32 product of the learner's shapes. FLOPs that are computed again\n"
        "to save memory do not count as done. An engine's weights are read once for every round of tokens; with many\n"
        "rows a round is bound by products, with few by memory, so the larger of its shares is the nearer limit.\n"
        "Targets: learner at least 60 % in (g), engine at least 50 % of reading once weights exceed the cache."
    )
    return f"{table(head, rows)}\n{told}\n" if rows else "Not measured.\n"


def start(pairs: dict[str, Data]) -> str:
    """Seconds from the start of the process to the first iteration."""
    rows = [
        [f"({letter})", *(f"{over(data, who, lambda run: run['start_seconds']):.1f}" for who in BOTH)]
        for letter, data in pairs.items()
    ]
    told = "Seconds from the start of the process to its first iteration: imports, model, optimizer. Target: 5 in (a)."
    return f"{table(('regime', 'Groupwise', 'TRL'), rows)}\n{told}\n"
