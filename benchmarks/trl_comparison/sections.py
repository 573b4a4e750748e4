"""The measurements: one function per section of the results."""

import os
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.trl_comparison.pairs import (
    Machine,
    Run,
    above,
    pairs,
    per_iteration,
    per_token,
    pinned_ratios,
    refuse_unequal,
)
from benchmarks.trl_comparison.regimes import GROWTH, PINNED, REGIMES, STORED, Regime

Notify = Callable[[str], None]
TWO = (0, 1)
ROUNDS = 2
"""Runs of each configuration on two cores."""
SEEDS = (0, 1, 2)
CURVE = 60
"""Iterations of a reward curve, as in the packaged recipe."""


def regime(letter: str) -> Callable[[Machine, Notify, int], dict[str, Any]]:
    """Measure pairs of runs of one regime, then the limits of the core at its shapes."""

    def measure(machine: Machine, notify: Notify, n: int) -> dict[str, Any]:
        one = REGIMES[letter]
        machine.prepare(one)
        results = {"pairs": pairs(one, n, machine, notify)}
        return results if one.net is None else results | {"limits": machine.limits(one)}

    return measure


def stored(letter: str) -> Callable[[Machine, Notify, int], dict[str, Any]]:
    """Measure pairs of runs on stored answers, whose losses are equal."""

    def measure(machine: Machine, notify: Notify, n: int) -> dict[str, Any]:
        one = STORED[letter]
        machine.prepare(one)
        before = os.getloadavg()[0]
        results = pairs(one, n, machine, notify)
        for pair in results:
            refuse_unequal(one, pair)
        return {"pairs": results, "load": [before, os.getloadavg()[0]]}

    return measure


def sweep(regimes: dict[str, Regime]) -> Callable[[Machine, Notify, int], dict[str, list[Run]]]:
    """Measure TRL with each micro-batch in each of the regimes."""

    def measure(machine: Machine, notify: Notify, n: int) -> dict[str, list[Run]]:
        """TRL with each micro-batch, one run each; for (a) also with transformers' continuous batching."""
        results: dict[str, list[Run]] = {}
        for letter, one in regimes.items():
            machine.prepare(one)
            ways = [("--micro-batch", str(m)) for m in one.micro_batches]
            ways += [("--continuous", "--iterations", str(one.warmup + 1))] if letter == "a" else []
            results[letter] = []
            for way in ways:
                run = machine.theirs(one, *way)
                name = " ".join(way[:2]).removeprefix("--").removesuffix(" --iterations")
                results[letter].append({"way": name, **run})
                notify(f"({letter}) {' '.join(way)}: {1e3 * per_token(one, run):.3f} ms a token, {above(run):.0f} MiB")
        return results

    return measure


def frugal(machine: Machine, notify: Notify, n: int) -> dict[str, Run]:
    """TRL with gradient checkpointing and micro-batches of 8."""
    results = {}
    for letter in "abcdeg":
        one = REGIMES[letter]
        machine.prepare(one)
        results[letter] = machine.theirs(one, "--frugal", "--micro-batch", "8")
        notify(f"({letter}) {1e3 * per_token(one, results[letter]):.3f} ms a token, {above(results[letter]):.0f} MiB")
    return results


def two(machine: Machine, notify: Notify, n: int) -> dict[str, dict[str, list[Run]]]:
    """Each system on two cores, in each configuration, interleaved."""
    both = Machine(cores=TWO, threads=2, trl=machine.trl)
    apart = Machine(cores=TWO, threads=1, trl=machine.trl)
    results: dict[str, dict[str, list[Run]]] = {}
    for letter in "abcde":
        one = REGIMES[letter]
        machine.prepare(one)
        half = max(m for m in (1, 2, 4, 8, 16, 32) if m <= one.micro_batch and one.minibatch % (2 * m) == 0)
        ways: dict[str, Callable[[], Run]] = {
            "groupwise, 1 thread": lambda one=one: apart.ours(one),
            "groupwise, 2 threads": lambda one=one: both.ours(one),
            "trl, 2 threads": lambda one=one: both.theirs(one),
            "trl, 2 processes": lambda one=one, half=half: apart.theirs(one, "--micro-batch", str(half), processes=2),
        }
        results[letter] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, run in ways.items():
                results[letter][way].append(run())
        for way, runs in results[letter].items():
            notify(f"({letter}) {way}: {1e3 * median(per_token(one, run) for run in runs):.3f} ms a token")
    return results


def pinned(machine: Machine, notify: Notify, n: int) -> dict[str, list[Run]]:
    """(h): two engines and a pinned learner (lag 1) on two cores, against runs without a lag and against TRL."""
    machine.prepare(PINNED)
    both = Machine(cores=TWO, threads=2, trl=machine.trl)
    apart = Machine(cores=TWO, threads=1, trl=machine.trl)
    engines = ("--engines", "2")
    # The last iteration samples nothing ahead, so it is left out.
    ahead = ("--max-staleness", "1", "--iterations", str(PINNED.warmup + PINNED.timed + 1))
    half = ("--micro-batch", str(PINNED.micro_batch // 2))
    ways: dict[str, Callable[[], Run]] = {
        "groupwise, 2 engines, lag 1": lambda: shortened(PINNED, apart.ours(PINNED, *engines, *ahead)),
        "groupwise, 2 engines": lambda: apart.ours(PINNED, *engines),
        "groupwise, 1 thread": lambda: apart.ours(PINNED),
        "groupwise, 2 threads": lambda: both.ours(PINNED),
        "trl, 2 threads": lambda: both.theirs(PINNED),
        "trl, 2 processes": lambda: apart.theirs(PINNED, *half, processes=2),
    }
    results: dict[str, list[Run]] = {way: [] for way in ways}
    for turn in range(n):
        for way, run in ways.items():
            results[way].append({**run(), "load": os.getloadavg()[0]})
            notify(f"{turn + 1}/{n} {way}: {per_iteration(PINNED, results[way][-1]):.2f} s per iteration")
    for way, (middle, least, most) in pinned_ratios(results).items():
        notify(f"{way} / {next(iter(ways))}: {middle:.2f} [{least:.2f} .. {most:.2f}]")
    return results


def shortened(one: Regime, run: Run) -> Run:
    """A run without the iterations after the timed ones."""
    return run | {"iterations": run["iterations"][: one.warmup + one.timed]}


def growth(machine: Machine, notify: Notify, n: int) -> dict[str, list[Run]]:
    """Groupwise alone, one size doubled four times."""
    results: dict[str, list[Run]] = {}
    for axis, works in GROWTH.items():
        results[axis] = []
        for one in works:
            machine.prepare(one)
            results[axis].append(machine.ours(one))
            notify(f"{one.letter}: {1e3 * per_token(one, results[axis][-1]):.3f} ms a token")
    return results


def curves(machine: Machine, notify: Notify, n: int) -> dict[str, dict[str, list[list[float]]]]:
    """Mean reward of each iteration of (a) and (e), three seeds per system."""
    results: dict[str, dict[str, list[list[float]]]] = {}
    for letter in "ae":
        one = REGIMES[letter]
        results[letter] = {"groupwise": [], "trl": []}
        for seed in SEEDS:
            machine.prepare(one, seed)
            more = ("--iterations", str(CURVE), "--seed", str(seed))
            for system, run in (("groupwise", machine.ours), ("trl", machine.theirs)):
                rewards = [iteration["reward"] for iteration in run(one, *more)["iterations"]]
                results[letter][system].append(rewards)
                notify(f"({letter}) {system}, seed {seed}: {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    return results


SECTIONS: dict[str, Callable[[Machine, Notify, int], Any]] = {
    **{letter: regime(letter) for letter in REGIMES},
    **{letter: stored(letter) for letter in STORED},
    "sweep": sweep(REGIMES),
    "stored_sweep": sweep(STORED),
    "frugal": frugal,
    "two": two,
    "h": pinned,
    "growth": growth,
    "curves": curves,
}
"""Sections by the names on the command line."""


def short() -> list[str]:
    """The sections of `make bench`."""
    return [letter for letter, one in REGIMES.items() if not one.full]


def title(name: str) -> str:
    """The title of a section."""
    if one := (REGIMES | STORED).get(name):
        return f"({name}) {one.title}"
    return (SECTIONS[name].__doc__ or name).splitlines()[0]
