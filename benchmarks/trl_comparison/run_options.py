"""The command line that all programs of one run have: the regime, its iterations, the seed and the threads.

Standard library only, since TRL's process imports it.
"""

import argparse
from collections.abc import Iterable


def run_options(description: str, regimes: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of a program that runs one of these regimes and prints a line of JSON."""
    parser = argparse.ArgumentParser(description=f"{description}; prints a line of JSON.")
    parser.add_argument("regime", choices=tuple(regimes), metavar="REGIME", help="its name")
    parser.add_argument("--iterations", type=int, help="instead of the regime's warm-up and timed iterations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", action="store_true", help="after the warm-up, wait for a line before each turn")
    return parser
