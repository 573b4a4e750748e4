"""Measure the limits of one core: float32 products of the learner's shapes, and memory reads. Prints a line of JSON.

python -m benchmarks.trl_comparison.limits g
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from benchmarks.trl_comparison.regimes import ALL_REGIMES, Regime
from benchmarks.trl_comparison.workload import forced_lengths

MEMORY = 1 << 29
"""Bytes to read: many times the size of a cache."""


def shapes(regime: Regime) -> list[tuple[int, int, int]]:
    """(rows, inputs, outputs) of the matrix products in the learner's forward: one layer, and one block of the head."""
    net = regime.net
    assert net is not None
    rows = regime.prompts * regime.prompt_tokens + sum(n - 1 for n in forced_lengths(regime))
    queries, block = net.heads * net.head_dim, min(rows, max(1, (1 << 22) // net.vocabulary_size))
    return [
        (rows, net.hidden_size, queries),
        (rows, queries, net.hidden_size),
        (rows, net.hidden_size, net.mlp_width),
        (rows, net.mlp_width, net.hidden_size),
        (block, net.hidden_size, net.vocabulary_size),
    ]


def seconds(work: Callable[[], object], least: float = 0.5) -> float:
    """Median seconds of a call, after one warm-up call; repeated for at least `least` seconds in total."""
    work()
    times: list[float] = []
    while sum(times) < least or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def peak(regime: Regime) -> float:
    """The highest rate of a product of the learner's shapes, forward or backward, in GFLOP/s."""
    rates = []
    for rows, inputs, outputs in shapes(regime):
        x, w, y = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        for product in (lambda x=x, w=w: x @ w.T, lambda y=y, w=w: y @ w, lambda x=x, y=y: y.T @ x):
            rates.append(2 * rows * inputs * outputs / seconds(product) / 1e9)
    return max(rates)


def bandwidth() -> dict[str, float]:
    """GB/s of reading a large array, and of copying it (a read and a write)."""
    x = torch.ones(MEMORY // 4)
    y = torch.empty_like(x)
    once, twice = seconds(lambda: torch.dot(x, x)), seconds(lambda: y.copy_(x))
    return {"read": MEMORY / once / 1e9, "copy": 2 * MEMORY / twice / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description="The limits of one core at a regime's shapes, as one line of JSON.")
    parser.add_argument("regime", choices=ALL_REGIMES, metavar="REGIME", help="its letter")
    a = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"gflops": peak(ALL_REGIMES[a.regime]), **bandwidth()}))


if __name__ == "__main__":
    main()
