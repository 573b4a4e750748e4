"""What this core can do at most: float32 products of the learner's shapes, and reading memory. Prints one line of JSON.

python -m benchmarks.beside.limits g
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from benchmarks.beside.regimes import WORKS, Regime
from benchmarks.beside.work import forced

MEMORY = 1 << 29
"""Bytes that are read: many times a cache."""


def shapes(regime: Regime) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of the products in a learner's forward: those of one layer, a microbatch of the head."""
    net = regime.net
    assert net is not None
    rows = regime.prompts * regime.prompt_tokens + sum(n - 1 for n in forced(regime))
    asks, at_once = net.heads * net.head_dim, min(rows, max(1, (1 << 22) // net.vocabulary))
    return [
        (rows, net.width, asks),
        (rows, asks, net.width),
        (rows, net.width, net.inner),
        (rows, net.inner, net.width),
        (at_once, net.width, net.vocabulary),
    ]


def seconds(work: Callable[[], object], least: float = 0.5) -> float:
    """Median seconds of the work, repeated for at least so long, after once for nothing."""
    work()
    took: list[float] = []
    while sum(took) < least or len(took) < 3:
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return median(took)


def peak(regime: Regime) -> float:
    """The highest rate of a product of the learner's shapes, forward or backward, in GFLOP/s."""
    rates = []
    for rows, inputs, outputs in shapes(regime):
        x, w, y = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        for product in (lambda x=x, w=w: x @ w.T, lambda y=y, w=w: y @ w, lambda x=x, y=y: y.T @ x):
            rates.append(2 * rows * inputs * outputs / seconds(product) / 1e9)
    return max(rates)


def bandwidth() -> dict[str, float]:
    """GB/s of reading a large array once, and of copying it (which reads and writes)."""
    x = torch.ones(MEMORY // 4)
    y = torch.empty_like(x)
    once, twice = seconds(lambda: torch.dot(x, x)), seconds(lambda: y.copy_(x))
    return {"read": MEMORY / once / 1e9, "copy": 2 * MEMORY / twice / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description="The limits of one core at a regime's shapes, as one line of JSON.")
    parser.add_argument("regime", choices=WORKS, metavar="REGIME", help="its letter")
    a = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"gflops": peak(WORKS[a.regime]), **bandwidth()}))


if __name__ == "__main__":
    main()
