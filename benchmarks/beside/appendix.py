"""The tables of RESULTS.md on what `make bench-full` adds, and the table of settings."""

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import mean, median

import numpy as np
from benchmarks.beside import work
from benchmarks.beside.chart import exponent
from benchmarks.beside.pairs import Run, above, per_token
from benchmarks.beside.regimes import DOUBLINGS, GROWTH, REGIMES, Regime
from benchmarks.beside.tables import BOTH, Data, over, table, timed

NAMES = {"groupwise": "Groupwise", "trl": "TRL"}


def two(data: dict[str, dict[str, list[Run]]]) -> str:
    """Each way of each system on two cores, and the ratio of the best."""
    rows = []
    for letter, ways in data.items():
        one = REGIMES[letter]
        times = {way: median(per_token(one, run) for run in runs) for way, runs in ways.items()}
        best = {who: min((way for way in times if way.startswith(who)), key=times.__getitem__) for who in BOTH}
        told = "; ".join(f"{way.split(', ')[1]} {1e6 * times[way]:.0f}" for way in times if way.startswith("trl"))
        ours = "; ".join(f"{way.split(', ')[1]} {1e6 * times[way]:.0f}" for way in times if way.startswith("groupwise"))
        rows.append((f"({letter})", ours, told, f"{times[best['trl']] / times[best['groupwise']]:.2f}"))
    head = ("regime", "Groupwise, s a million trained tokens", "TRL", "ratio of the best")
    return table(head, rows)


def sweep(data: dict[str, list[Run]]) -> str:
    """What TRL needs by its micro-batch."""
    rows = []
    for letter, runs in data.items():
        one = REGIMES[letter]
        fits = [run for run in runs if run["peak_mib"] < 12 * 1024]
        best = min(fits, key=partial(per_token, one))
        rows += [
            (
                f"({letter})", run["way"], f"{1e6 * per_token(one, run):.0f}", f"{above(run):.0f}",
                "fastest" if run is best else "",
            )
            for run in runs
        ]  # fmt: skip
    used = ", ".join(f"({one.letter}) {one.micro_batch}" for one in REGIMES.values())
    head = ("regime", "way", "s a million trained tokens", "peak above imports, MiB", "")
    told = f"One run each: of 8, 32, 128, 256 those that divide a step, and a whole step. The figures above use {used}."
    return f"{table(head, rows)}\n{told}\n"


def frugal(data: dict[str, Run], pairs: dict[str, Data]) -> str:
    """TRL with gradient checkpointing and micro-batches of 8, beside both at the settings of the time figures."""
    rows = []
    for letter, run in data.items():
        if letter in pairs:
            one = REGIMES[letter]
            peaks = [above(run), *(over(pairs[letter], who, above) for who in ("trl", "groupwise"))]
            times = [per_token(one, run)]
            times += [over(pairs[letter], who, partial(per_token, one)) for who in ("trl", "groupwise")]
            rows.append((f"({letter})", *(f"{m:.0f}" for m in peaks), *(f"{1e6 * t:.0f}" for t in times)))
    head = ("regime", "TRL frugal, MiB", "TRL, MiB", "Groupwise, MiB", "TRL frugal, s a million tokens", "TRL",
            "Groupwise")  # fmt: skip
    told = "Gradient checkpointing and micro-batches of 8; memory is the peak above the imports."
    return f"{table(head, rows)}\n{told}\n"


def grown(axis: str, runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Seconds an iteration and MiB above the imports, as one size grows."""
    return [min(i["seconds"] for i in timed(one, run)) for one, run in zip(GROWTH[axis], runs)], list(map(above, runs))


def rates(seconds: Sequence[float], linear: Sequence[float], attention: Sequence[float]) -> tuple[float, float, float]:
    """FLOPs a second of products and of attention that explain the times best, and the largest relative error.

    Least squares of relative errors over a constant and both kinds of FLOPs.

    >>> linear, attention = [1, 2, 4, 8], [1, 4, 16, 64]
    >>> [round(x, 6) for x in rates([3 + a / 5 + b / 2 for a, b in zip(linear, attention)], linear, attention)]
    [5.0, 2.0, 0.0]
    """
    share = np.stack([np.ones(len(seconds)), linear, attention], 1) / np.asarray(seconds)[:, None]
    found = np.linalg.lstsq(share, np.ones(len(seconds)), rcond=None)[0]
    return float(1 / found[1]), float(1 / found[2]), float(abs(share @ found - 1).max())


def growth(data: dict[str, list[Run]]) -> str:
    """Exponents of time and memory, beside those of the FLOPs that were asked for."""
    rows, said = [], []
    for axis, runs in data.items():
        seconds, memory = grown(axis, runs)
        asked = [(work.learner(one), work.engine(one)) for one in GROWTH[axis]]
        linear = [sum(f.linear for f in pair) for pair in asked]
        attention = [sum(f.attention for f in pair) for pair in asked]
        share = [a / (a + b) for a, b in zip(attention, linear)]
        flops = exponent(DOUBLINGS, [a + b for a, b in zip(attention, linear)])
        if axis in ("prompt", "answer"):
            products, looks, worst = rates(seconds, linear, attention)
            said.append(
                f"Times of the {axis} are a constant, products at {products / 1e9:.0f} GFLOP/s and attention at "
                f"{looks / 1e9:.1f}, to within {worst:.0%} of each.\n"
            )
        rows.append(
            (
                axis, " / ".join(f"{s:.2f}" for s in seconds), f"**{exponent(DOUBLINGS, seconds):.2f}**",
                f"{flops:.2f}", f"{share[0]:.0%} to {share[-1]:.0%}", " / ".join(f"{m:.0f}" for m in memory),
                f"{exponent(DOUBLINGS, memory):.2f}",
            )
        )  # fmt: skip
    head = ("size", "s an iteration", "exponent", "of the FLOPs", "attention's share", "MiB above imports", "exponent")
    return "\n".join([table(head, rows), *said])


def curves(data: dict[str, dict[str, list[list[float]]]]) -> str:
    """First and last ten iterations of each seed."""
    rows = [
        (f"({letter})", NAMES[who], str(seed), f"{mean(rewards[:10]):.3f}", f"{mean(rewards[-10:]):.3f}")
        for letter, systems in data.items()
        for who, seeds in systems.items()
        for seed, rewards in enumerate(seeds)
    ]
    return table(("regime", "system", "seed", "mean reward, first ten iterations", "last ten"), rows)


def settings(regimes: Iterable[Regime], pairs: dict[str, Data]) -> str:
    """Everything by which the works differ, and what ran."""
    rows = []
    for one in regimes:
        net = one.net
        shape = "packaged calculator model"
        if net is not None:
            shape = (
                f"{net.family}, vocabulary {net.vocabulary:,}, width {net.width}, {net.layers} layers, "
                f"{net.heads} heads of {net.head_dim}, {net.kv_heads} for keys, inner {net.inner}, tied, random weights"
            )
        lengths = "natural, at most " + str(one.max_tokens) if one.lengths is None else str(one.lengths)
        rows.append(
            (
                f"({one.letter})", shape, f"{one.prompts} x {one.group}", str(one.prompt_tokens or "the task's"),
                lengths, f"{one.loss}, clip {one.low:g} / {one.high:g}", f"{one.minibatches} x {one.epochs}",
                f"{one.lr:g}, {one.decay}", f"{one.warmup} + {one.timed}", str(one.micro_batch),
            )
        )  # fmt: skip
    head = ("regime", "model", "prompts x group", "prompt tokens", "answer tokens", "objective", "minibatches x passes",
            "learning rate", "iterations, warm-up + timed", "TRL's micro-batch")  # fmt: skip
    common = (
        "AdamW, fused, betas 0.9 and 0.999, eps 1e-8, no weight decay, gradient norm at most 1; temperature 1, no\n"
        "top-k or top-p, no KL, rewards scaled by each group's deviation. TRL: SDPA, no gradient checkpointing."
    )
    ran: list[str] = []
    for data in list(pairs.values())[:1]:
        used = {who: data["pairs"][0][who]["versions"] for who in BOTH}
        ran = ["", *(f"{who}: {', '.join(f'{k} {v}' for k, v in used[who].items())}.\n" for who in BOTH)]
    return "\n".join([table(head, rows), common, *ran])
