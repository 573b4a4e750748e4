"""Groupwise and TRL on the same work. `make bench` types the whole command; one doubtful figure is one line:

python -m benchmarks.beside a --pairs 1
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.beside.page import summary, write
from benchmarks.beside.pairs import Machine
from benchmarks.beside.regimes import REGIMES
from benchmarks.beside.results import keep, read
from benchmarks.beside.sections import SECTIONS, short, title


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beside",
        description="Groupwise and TRL on the same work, in interleaved pairs of runs on core 0.",
        epilog="; ".join(f"{name}: {title(name)}" for name in SECTIONS),
    )
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; none: {short()}")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="pairs of runs for each regime (5)")
    parser.add_argument("--trl", default=sys.executable, metavar="PYTHON", help="an interpreter that has TRL")
    parser.add_argument("--write", action="store_true", help="keep the figures and write benchmarks/RESULTS.md")
    a = parser.parse_args(argv)
    strange = [name for name in a.section if name not in SECTIONS]
    if strange:
        parser.error(f"nothing is called {strange[0]}; there are {', '.join(SECTIONS)}")
    if a.pairs < 1:
        parser.error("--pairs is at least 1")
    machine, began, found = Machine(trl=a.trl), time.perf_counter(), {}
    machine.trial()
    for name in a.section or short():
        say(title(name))
        found[name] = SECTIONS[name](machine, lambda line: say(f"  {line}"), a.pairs)
        if a.write:
            keep(name, found[name])
    for name in found:
        if name in REGIMES:
            say(summary(REGIMES[name], found[name]))
    if a.write:
        say("\n".join(map(str, write(read()))))
    say(f"{(time.perf_counter() - began) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
