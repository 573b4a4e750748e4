"""Run regimes side by side.

python -m benchmarks.beside a --pairs 1
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.beside.pairs import Machine, pairs, ratio, spread
from benchmarks.beside.regimes import REGIMES


def main(argv: Sequence[str] | None = None) -> int:
    about = "Groupwise and TRL on the same work, in interleaved pairs of runs."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=about)
    parser.add_argument("regime", nargs="*", help=f"of {', '.join(REGIMES)}; none: all but those of bench-full")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs for each regime")
    parser.add_argument("--trl", default=sys.executable, metavar="PYTHON", help="an interpreter that has TRL")
    a = parser.parse_args(argv)
    machine = Machine(trl=a.trl)
    for letter in a.regime or [r.letter for r in REGIMES.values() if not r.full]:
        regime = REGIMES[letter]
        machine.run(sys.executable, ["-m", "benchmarks.beside.prepare", letter])
        print(f"({letter}) {regime.title}", flush=True)
        found = pairs(regime, a.pairs, machine, lambda line: print(f"  {line}", flush=True))
        for clock in ("seconds", "cpu"):
            middle, least, most = spread([ratio(regime, pair, clock) for pair in found if pair["sound"]])
            print(
                f"({letter}) {clock}: {middle:.2f}x [{least:.2f} .. {most:.2f}], target {regime.target:g}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
