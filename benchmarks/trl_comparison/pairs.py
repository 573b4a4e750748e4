"""Interleaved pairs of turns, Groupwise then TRL, alone on one core, and the ratios of their times."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.trl_comparison.paths import HOME
from benchmarks.trl_comparison.regimes import PINNED, Regime
from benchmarks.trl_comparison.turns import DEADLINE, TurnProcess, last_json

CORE = 0
APART = 0.15
"""If the probes around a pair differ by more than this share, the machine was unsteady, and the pair is repeated."""
REPEATS = 3
"""Most repeated pairs per regime; further pairs count as they are, and the page says how many."""
CLOSE = 1e-4
"""The largest relative difference of two losses after some steps in float32."""
PROBE = """
import json, sys, time, torch
torch.set_num_threads(1)
a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
def once():
    start = time.perf_counter()
    for _ in range(4): a @ b
    return 4 * 2 * 1024**3 / (time.perf_counter() - start) / 1e9
once()
for line in sys.stdin:
    print(json.dumps({"gflops": sorted(once() for _ in range(9))[4]}), flush=True)
"""
"""For each input line, prints the median GFLOP/s of a float32 product of 1024 x 1024."""

KEEP = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 34)) | {
    "MALLOC_TOP_PAD_": str(1 << 26)
}
"""Makes glibc keep freed memory, for both systems. Without it large tensors return to the system and are faulted in
again at each use, which costs TRL a third of (d) and Groupwise a tenth."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Runs processes pinned to `cores`, each with `threads`; `trl` is the interpreter for TRL."""

    cores: Sequence[int] = (CORE,)
    threads: int = 1
    trl: str = sys.executable

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of Popen: directory, environment, core pinning."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "GROUPWISE_"))}
        paths = os.pathsep.join([str(HOME / "src"), str(HOME)])
        environment = keep | KEEP | {"OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": paths}
        return {"cwd": HOME, "env": environment, "preexec_fn": lambda: os.sched_setaffinity(0, self.cores)}

    def run(self, command: Sequence[str]) -> str:
        """The standard output of one pinned process. SystemExit with its standard error if it fails."""
        how = {"capture_output": True, "text": True, "check": False, "timeout": DEADLINE}
        try:
            process = subprocess.run(command, **how, **self.how)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(command)} took longer than {DEADLINE:.0f} seconds") from None
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stderr[-2000:]}")
        return process.stdout

    def check(self) -> None:
        """SystemExit with a way out if TRL is not installed or the core is not available."""
        if CORE not in os.sched_getaffinity(0):
            raise SystemExit(f"this process may not run on core {CORE}: start it without taskset")
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('trl') is None)"
        if subprocess.run([self.trl, "-c", look], check=False).returncode:
            raise SystemExit(f"{self.trl} has no TRL: pip install -c constraints.txt -e '.[bench]', or --trl PYTHON")

    @contextmanager
    def probe(self) -> Iterator[Callable[[], float]]:
        """A function that measures the GFLOP/s of one core now."""
        with TurnProcess([sys.executable, "-c", PROBE], **self.how) as player:
            yield lambda: player.turn()["gflops"]

    @contextmanager
    def both(self, regime: Regime, turns: int) -> Iterator[tuple[Callable[[], Run], Callable[[], Run]]]:
        """Start and warm up both systems, one after the other, for `turns` turns each.

        Neither ends by itself, since its shutdown would disturb the other's turn.
        """
        more = ("--turns", "--iterations", str(regime.warmup + turns * regime.timed + 1))
        with TurnProcess(self._ours(regime, more), **self.how) as ours:
            ours.receive()
            with TurnProcess(self._theirs(regime, more), **self.how) as theirs:
                theirs.receive()
                yield (lambda: newest(regime, ours.turn())), (lambda: newest(regime, theirs.turn()))

    def ours(self, regime: Regime, *more: str) -> Run:
        """One run of Groupwise."""
        return last_json(self.run(self._ours(regime, more)))

    def theirs(self, regime: Regime, *more: str, processes: int = 1) -> Run:
        """One run of TRL, data-parallel over `processes`."""
        return last_json(self.run(self._theirs(regime, more, processes)))

    def _ours(self, regime: Regime, more: Sequence[str]) -> list[str]:
        return [sys.executable, *self._module("run_groupwise", regime), *more]

    def _theirs(self, regime: Regime, more: Sequence[str], processes: int = 1) -> list[str]:
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return [self.trl, *([] if processes == 1 else several), *self._module("run_trl", regime), *more]

    def _module(self, name: str, regime: Regime) -> list[str]:
        """The arguments of Python that run a regime in a system."""
        module = f"benchmarks.trl_comparison.{name}{'_stored' if regime.columns else ''}"
        return ["-m", module, regime.letter, "--threads", str(self.threads)]

    def prepare(self, regime: Regime, seed: int = 0) -> None:
        """Write the files that both systems read."""
        self.run([sys.executable, "-m", "benchmarks.trl_comparison.prepare", regime.letter, "--seed", str(seed)])

    def limits(self, regime: Regime) -> dict[str, float]:
        """Limits of the core at the regime's shapes."""
        return last_json(self.run([sys.executable, "-m", "benchmarks.trl_comparison.limits", regime.letter]))


def newest(regime: Regime, run: Run) -> Run:
    """A run reduced to its warm-up and its newest turn.

    >>> from benchmarks.trl_comparison.regimes import REGIMES
    >>> newest(REGIMES["b"], {"iterations": ["warm-up", 1, 2, 3]})
    {'iterations': ['warm-up', 3]}
    """
    iterations = run["iterations"]
    return run | {"iterations": [*iterations[: regime.warmup], *iterations[-regime.timed :]]}


def pairs(regime: Regime, n: int, machine: Machine, notify: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure until `n` pairs count; the result includes repeated pairs.

    With forced lengths, all pairs are turns of the same two processes. Without, each pair starts two new processes,
    because a model that has learned longer generates other lengths.
    """
    results: list[dict[str, Any]] = []
    turns = 1 if regime.lengths is None else n + REPEATS
    with machine.probe() as probe:
        while len(counted(results)) < n:
            with machine.both(regime, turns) as sides:
                before = probe()
                for _ in range(turns):
                    start = time.perf_counter()
                    pair: dict[str, Any] = dict(zip(("groupwise", "trl"), (turn() for turn in sides), strict=True))
                    pair["probes"] = [before, before := probe()]
                    pair["counts"] = close(pair) or len(results) - len(counted(results)) >= REPEATS
                    results.append(pair)
                    notify(f"pair {len(results)}: {progress(regime, pair)}; {time.perf_counter() - start:.0f} s")
                    if len(counted(results)) == n:
                        break
    return results


def progress(regime: Regime, pair: dict[str, Any]) -> str:
    """One line of progress for a pair."""

    def seconds(run: Run) -> str:
        sampling = "" if regime.columns else f" ({phase(regime, 'sample', run):.2f} to sample)"
        return f"{per_iteration(regime, run):.2f} s{sampling}"

    ours, theirs = (seconds(pair[system]) for system in ("groupwise", "trl"))
    before, after = pair["probes"]
    return (
        f"{ratio(regime, pair):.2f}x ({ratio(regime, pair, 'cpu'):.2f}x by CPU); an iteration {ours} and {theirs}; "
        f"probes {before:.0f} and {after:.0f} GFLOP/s{'' if pair['counts'] else ', repeated'}"
    )


def close(pair: dict[str, Any]) -> bool:
    """Whether the probes before and after a pair agree.

    >>> close({"probes": [100, 86]}), close({"probes": [80, 100]})
    (True, False)
    """
    return 1 - min(pair["probes"]) / max(pair["probes"]) <= APART


def counted(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pairs that were not repeated."""
    return [pair for pair in pairs if pair["counts"]]


def timed(regime: Regime, run: Run) -> list[dict[str, Any]]:
    """The iterations after the warm-up."""
    return run["iterations"][regime.warmup :]


def per_iteration(regime: Regime, run: Run, clock: str = "seconds") -> float:
    """Seconds per iteration."""
    return mean(iteration[clock] for iteration in timed(regime, run))


def phase(regime: Regime, name: str, run: Run) -> float:
    """Seconds of a phase per iteration."""
    return mean(iteration["phases"][name][0] for iteration in timed(regime, run))


def per_token(regime: Regime, run: Run, clock: str = "seconds") -> float:
    """Seconds per trained token."""
    iterations = timed(regime, run)
    return sum(i[clock] for i in iterations) / sum(i["tokens"] for i in iterations)


def above(run: Run) -> float:
    """Peak MiB above the imports."""
    return run["peak_mib"] - run["floor_mib"]


def ratio(regime: Regime, pair: dict[str, Any], clock: str = "seconds") -> float:
    """Time of TRL / time of Groupwise per trained token; with forced lengths also per iteration."""
    return per_token(regime, pair["trl"], clock) / per_token(regime, pair["groupwise"], clock)


def refuse_unequal(regime: Regime, pair: dict[str, Any]) -> None:
    """SystemExit if a step of a pair has other trained tokens in TRL than in Groupwise, or another loss."""
    for ours, theirs in zip(timed(regime, pair["groupwise"]), timed(regime, pair["trl"]), strict=True):
        if ours["tokens"] != theirs["tokens"] or abs(ours["loss"] - theirs["loss"]) > CLOSE * abs(theirs["loss"]):
            figures = [f"{x['tokens']} tokens, loss {x['loss']:.7g}" for x in (ours, theirs)]
            raise SystemExit(f"({regime.letter}) Groupwise and TRL did other work: {'; '.join(figures)}")


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, minimum and maximum.

    >>> spread([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    return median(values), min(values), max(values)


def pinned_ratios(results: Mapping[str, Sequence[Run]]) -> dict[str, tuple[float, float, float]]:
    """The seconds of each configuration over those of the pinned one in the same turn: median, minimum, maximum."""
    first, *others = results
    seconds = {way: [per_iteration(PINNED, run) for run in runs] for way, runs in results.items()}
    return {way: spread([x / y for x, y in zip(seconds[way], seconds[first])]) for way in others}
