"""Interleaved pairs of turns, Groupwise's then TRL's, on one core that each has to itself, and their ratios."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from benchmarks.beside.files import HOME
from benchmarks.beside.regimes import Regime
from benchmarks.beside.turns import DEADLINE, Player, told

CORE = 0
APART = 0.15
"""Probes around a pair that differ by more than this say that the machine was not the same: the pair is repeated."""
REPEATS = 3
"""Pairs of one regime that are repeated at most; after that they count as they are, and the page says how many."""
PROBE = """
import json, sys, time, torch
torch.set_num_threads(1)
a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
def once():
    began = time.perf_counter()
    for _ in range(4): a @ b
    return 4 * 2 * 1024**3 / (time.perf_counter() - began) / 1e9
once()
for line in sys.stdin:
    print(json.dumps({"gflops": sorted(once() for _ in range(9))[4]}), flush=True)
"""
"""At every line, the median GFLOP/s of a float32 product of 1024 x 1024."""

KEEP = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 34)) | {
    "MALLOC_TOP_PAD_": str(1 << 26)
}
"""Tells glibc to keep freed memory, for both sides alike. Without it large tensors are given back to the system and
faulted in again at every use, which costs TRL a third of (d) and Groupwise a tenth."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where runs run: pinned to `cores`, each with `threads`; TRL by the interpreter `trl`."""

    cores: Sequence[int] = (CORE,)
    threads: int = 1
    trl: str = sys.executable

    @property
    def how(self) -> dict[str, Any]:
        """Where and with what environment a process runs."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "GROUPWISE_"))}
        paths = os.pathsep.join([str(HOME / "src"), str(HOME)])
        environment = keep | KEEP | {"OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": paths}
        return {"cwd": HOME, "env": environment, "preexec_fn": lambda: os.sched_setaffinity(0, self.cores)}

    def run(self, command: Sequence[str]) -> str:
        """The standard output of one pinned process. SystemExit with its errors where it fails."""
        how = {"capture_output": True, "text": True, "check": False, "timeout": DEADLINE}
        try:
            done = subprocess.run(command, **how, **self.how)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(command)} took longer than {DEADLINE:.0f} seconds") from None
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def trial(self) -> None:
        """SystemExit that says what to do where TRL is not installed, or the core is not ours."""
        if CORE not in os.sched_getaffinity(0):
            raise SystemExit(f"this process may not run on core {CORE}: start it without taskset")
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('trl') is None)"
        if subprocess.run([self.trl, "-c", look], check=False).returncode:
            raise SystemExit(f"{self.trl} has no TRL: pip install -c constraints.txt -e '.[bench]', or --trl PYTHON")

    @contextmanager
    def probe(self) -> Iterator[Callable[[], float]]:
        """What tells GFLOP/s of one core at each moment that it is asked."""
        with Player([sys.executable, "-c", PROBE], **self.how) as player:
            yield lambda: player.turn()["gflops"]

    @contextmanager
    def both(self, regime: Regime, turns: int) -> Iterator[tuple[Callable[[], Run], Callable[[], Run]]]:
        """Both systems, started and warmed up one after the other, to take so many turns. Neither comes to its end by
        itself, which would be work while the other is timed."""
        more = ("--turns", "--iterations", str(regime.warmup + turns * regime.timed + 1))
        with Player(self._ours(regime, more), **self.how) as ours:
            ours.hear()
            with Player(self._theirs(regime, more), **self.how) as theirs:
                theirs.hear()
                yield (lambda: newest(regime, ours.turn())), (lambda: newest(regime, theirs.turn()))

    def ours(self, regime: Regime, *more: str) -> Run:
        """One run of Groupwise."""
        return told(self.run(self._ours(regime, more)))

    def theirs(self, regime: Regime, *more: str, processes: int = 1) -> Run:
        """One run of TRL, in several processes that share its work where `processes` says so."""
        return told(self.run(self._theirs(regime, more, processes)))

    def _ours(self, regime: Regime, more: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "benchmarks.beside.ours", regime.letter, "--threads", str(self.threads), *more]

    def _theirs(self, regime: Regime, more: Sequence[str], processes: int = 1) -> list[str]:
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        code = ["-m", "benchmarks.beside.theirs", regime.letter, "--threads", str(self.threads), *more]
        return [self.trl, *([] if processes == 1 else several), *code]

    def prepare(self, regime: Regime, seed: int = 0) -> None:
        """The files that both sides read."""
        self.run([sys.executable, "-m", "benchmarks.beside.prepare", regime.letter, "--seed", str(seed)])

    def limits(self, regime: Regime) -> dict[str, float]:
        """What the core can do at most at the regime's shapes."""
        return told(self.run([sys.executable, "-m", "benchmarks.beside.limits", regime.letter]))


def newest(regime: Regime, run: Run) -> Run:
    """A run as if its newest turn were its only one.

    >>> from benchmarks.beside.regimes import REGIMES
    >>> newest(REGIMES["b"], {"iterations": ["warm-up", 1, 2, 3]})
    {'iterations': ['warm-up', 3]}
    """
    made = run["iterations"]
    return run | {"iterations": [*made[: regime.warmup], *made[-regime.timed :]]}


def pairs(regime: Regime, n: int, machine: Machine, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """`n` pairs that count, those that were repeated among them.

    Where answers have forced lengths, all pairs are turns of the same two processes. Where they end by themselves,
    each pair is of two new ones: what has learned for longer answers otherwise.
    """
    found: list[dict[str, Any]] = []
    turns = 1 if regime.lengths is None else n + REPEATS
    with machine.probe() as probe:
        while len(counted(found)) < n:
            with machine.both(regime, turns) as sides:
                before = probe()
                for _ in range(turns):
                    began = time.perf_counter()
                    pair: dict[str, Any] = dict(zip(("groupwise", "trl"), (turn() for turn in sides), strict=True))
                    pair["probes"] = [before, before := probe()]
                    pair["counts"] = close(pair) or len(found) - len(counted(found)) >= REPEATS
                    found.append(pair)
                    say(f"pair {len(found)}: {line(regime, pair)}; {time.perf_counter() - began:.0f} s")
                    if len(counted(found)) == n:
                        break
    return found


def line(regime: Regime, pair: dict[str, Any]) -> str:
    """A pair for who waits."""
    ours, theirs = (
        f"{per_iteration(regime, pair[system]):.2f} s ({phase(regime, 'sample', pair[system]):.2f} to sample)"
        for system in ("groupwise", "trl")
    )
    before, after = pair["probes"]
    return (
        f"{ratio(regime, pair):.2f}x ({ratio(regime, pair, 'cpu'):.2f}x by CPU); an iteration {ours} and {theirs}; "
        f"probes {before:.0f} and {after:.0f} GFLOP/s{'' if pair['counts'] else ', repeated'}"
    )


def close(pair: dict[str, Any]) -> bool:
    """Whether the machine was the same before and after.

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
    """Seconds of an iteration."""
    return mean(iteration[clock] for iteration in timed(regime, run))


def phase(regime: Regime, name: str, run: Run) -> float:
    """Seconds of a phase in an iteration."""
    return mean(iteration["phases"][name][0] for iteration in timed(regime, run))


def per_token(regime: Regime, run: Run, clock: str = "seconds") -> float:
    """Seconds of a trained token."""
    iterations = timed(regime, run)
    return sum(i[clock] for i in iterations) / sum(i["tokens"] for i in iterations)


def above(run: Run) -> float:
    """MiB of the peak above what the imports held."""
    return run["peak_mib"] - run["floor_mib"]


def ratio(regime: Regime, pair: dict[str, Any], clock: str = "seconds") -> float:
    """Time of TRL / time of Groupwise, for a trained token: the same as for an iteration where lengths are forced."""
    return per_token(regime, pair["trl"], clock) / per_token(regime, pair["groupwise"], clock)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and largest.

    >>> spread([3.0, 1.0, 2.0])
    (2.0, 1.0, 3.0)
    """
    return median(values), min(values), max(values)
