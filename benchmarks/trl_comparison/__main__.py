"""The command line of the benchmark against TRL. `make bench` runs it; this repeats one figure:

python -m benchmarks.trl_comparison a --pairs 1
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.trl_comparison.page import summary, write
from benchmarks.trl_comparison.pairs import Machine
from benchmarks.trl_comparison.regimes import REGIMES, STORED
from benchmarks.trl_comparison.results import read, store
from benchmarks.trl_comparison.sections import SECTIONS, short, title


def notify(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trl_comparison",
        description="Run Groupwise and TRL on equal work, in interleaved pairs on core 0.",
        epilog="; ".join(f"{name}: {title(name)}" for name in SECTIONS),
    )
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"from {', '.join(SECTIONS)}; default: {short()}")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="pairs of runs for each regime (5)")
    parser.add_argument("--trl", default=sys.executable, metavar="PYTHON", help="the Python interpreter with TRL")
    parser.add_argument("--write", action="store_true", help="store the figures and write benchmarks/RESULTS.md")
    a = parser.parse_args(argv)
    unknown = [name for name in a.section if name not in SECTIONS]
    if unknown:
        parser.error(f"{unknown[0]} is not a section; the sections are {', '.join(SECTIONS)}")
    if a.pairs < 1:
        parser.error("--pairs is at least 1")
    machine, start, measured = Machine(trl=a.trl), time.perf_counter(), {}
    machine.check()
    for name in a.section or short():
        notify(title(name))
        measured[name] = SECTIONS[name](machine, lambda line: notify(f"  {line}"), a.pairs)
        if a.write:
            store(name, measured[name])
    for name in measured:
        if one := (REGIMES | STORED).get(name):
            notify(summary(one, measured[name]))
    if a.write:
        notify("\n".join(map(str, write(read()))))
    notify(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
