"""Tables of RESULTS.md for the measurements of `make bench`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

from benchmarks.trl_comparison import workload
from benchmarks.trl_comparison.pairs import (
    Run,
    above,
    close,
    counted,
    per_iteration,
    per_token,
    phase,
    ratio,
    spread,
    timed,
)
from benchmarks.trl_comparison.regimes import REGIMES, Regime

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
    """The median of `f` over a system's runs."""
    return median(f(pair[who]) for pair in counted(data["pairs"]))


def met(reached: bool) -> str:
    return "yes" if reached else "**no**"


def ratios(pairs: dict[str, Data]) -> str:
    """Times and memory peaks of both systems, and whether the targets are met."""
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
    head = ("regime", "ratio of times", "of CPU seconds", "target", "s per iteration", "s per million trained tokens",
            "peak above imports, MiB", "pairs + repeated")  # fmt: skip
    note = "In pairs of numbers, the first is Groupwise's and the second TRL's."
    return f"{table(head, rows)}\n{note}\n"


def phases(pairs: dict[str, Data]) -> str:
    """Tokens per second in sampling and in the rest of the iteration."""

    rows = []
    for letter, data in pairs.items():
        row = [f"({letter})"]
        for f in (sampled, learned):
            ours, theirs = (over(data, who, partial(f, REGIMES[letter])) for who in BOTH)
            row += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
        rows.append(row)
    head = ("regime", "sampling, Groupwise", "TRL", "ratio", "learning, Groupwise", "TRL", "ratio")
    note = "Trained tokens per second. Sampling ends with the verdicts; learning is the rest of the iteration."
    return f"{table(head, rows)}\n{note}\n"


def sampled(one: Regime, run: Run) -> float:
    """Trained tokens per second of sampling."""
    return tokens(one, run) / phase(one, "sample", run)


def learned(one: Regime, run: Run) -> float:
    """Trained tokens per second of the rest of the iteration."""
    return tokens(one, run) / (per_iteration(one, run) - phase(one, "sample", run))


def tokens(one: Regime, run: Run) -> float:
    """Trained tokens per iteration."""
    return mean(iteration["tokens"] for iteration in timed(one, run))


def limits(pairs: dict[str, Data]) -> str:
    """Groupwise's rates against the limits of the core, for regimes with forced lengths."""
    rows = []
    for letter, data in pairs.items():
        if "limits" not in data:
            continue
        one, most = REGIMES[letter], data["limits"]
        sample = over(data, "groupwise", partial(phase, one, "sample"))
        learn = over(data, "groupwise", partial(phase, one, "learn"))
        learner, engine = (workload.learner(one).all / learn / 1e9, workload.engine(one).all / sample / 1e9)
        traffic = workload.traffic(one) / sample / 1e9
        rows.append(
            (
                f"({letter})", f"{most['gflops']:.0f}", f"{learner:.0f}", f"{learner / most['gflops']:.0%}",
                f"{engine:.0f}", f"{engine / most['gflops']:.0%}", f"{most['read']:.1f}", f"{traffic:.1f}",
                f"{traffic / most['read']:.0%}",
            )
        )  # fmt: skip
    head = ("regime", "GEMM peak, GFLOP/s", "learner", "share", "engine", "share", "memory read, GB/s",
            "engine's weights", "share")  # fmt: skip
    note = (
        "The peak is the fastest float32 product of the learner's shapes. Recomputation that saves memory does not\n"
        "count. The engine reads its weights once per token position. With many rows products limit it, with few\n"
        "rows memory does, so the larger of its two shares is the nearer limit.\n"
        "Targets: learner at least 60 % in (g); engine at least 50 % of the memory read rate if weights exceed the\n"
        "processor's cache."
    )
    return f"{table(head, rows)}\n{note}\n" if rows else "Not measured.\n"


def start(pairs: dict[str, Data]) -> str:
    """Seconds from the start of the process to the first iteration."""
    rows = [
        [f"({letter})", *(f"{over(data, who, lambda run: run['start_seconds']):.1f}" for who in BOTH)]
        for letter, data in pairs.items()
    ]
    note = "Seconds from the start of the process to its first iteration: imports, model, optimizer. Target: 5 in (a)."
    return f"{table(('regime', 'Groupwise', 'TRL'), rows)}\n{note}\n"
