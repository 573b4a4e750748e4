"""Tables of RESULTS.md: the measurements that `make bench-full` adds, and the settings."""

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import mean, median

import numpy as np
from benchmarks.trl_comparison import workload
from benchmarks.trl_comparison.chart import exponent
from benchmarks.trl_comparison.pairs import Run, above, counted, per_iteration, per_token, pinned_ratios, ratio, spread
from benchmarks.trl_comparison.regimes import DOUBLINGS, GROWTH, PINNED, REGIMES, STORED, Regime
from benchmarks.trl_comparison.tables import BOTH, Data, over, table, timed

NAMES = {"groupwise": "Groupwise", "trl": "TRL"}


def two(data: dict[str, dict[str, list[Run]]]) -> str:
    """Each configuration of each system on two cores, and the ratio of the fastest."""
    rows = []
    for letter, ways in data.items():
        one = REGIMES[letter]
        times = {way: median(per_token(one, run) for run in runs) for way, runs in ways.items()}
        best = {who: min((way for way in times if way.startswith(who)), key=times.__getitem__) for who in BOTH}
        theirs = "; ".join(f"{way.split(', ')[1]} {1e6 * times[way]:.0f}" for way in times if way.startswith("trl"))
        ours = "; ".join(f"{way.split(', ')[1]} {1e6 * times[way]:.0f}" for way in times if way.startswith("groupwise"))
        rows.append((f"({letter})", ours, theirs, f"{times[best['trl']] / times[best['groupwise']]:.2f}"))
    head = ("regime", "Groupwise, s per million trained tokens", "TRL", "ratio of the fastest")
    return table(head, rows)


def pinned(data: dict[str, list[Run]]) -> str:
    """Each configuration of (h), and its time over that of the pinned one."""
    rows = []
    over_pinned = pinned_ratios(data)
    for way, runs in data.items():
        times, loads = ([f(run) for run in runs] for f in (partial(per_iteration, PINNED), lambda run: run["load"]))
        middle, least, most = spread(times)
        ratio = "{:.2f} [{:.2f} .. {:.2f}]".format(*over_pinned[way]) if way in over_pinned else "1"
        load = f"{min(loads):.1f} .. {max(loads):.1f}"
        rows.append((way, f"{middle:.2f} [{least:.2f} .. {most:.2f}]", f"**{ratio}**", load))
    head = ("configuration", "s per iteration", "over the pinned one", "load average after a run")
    return table(head, rows) + f"\n{len(next(iter(data.values())))} runs of each, in turn.\n"


def stored(data: dict[str, Data]) -> str:
    """Times and memory peaks of both systems on stored answers, and the loss of the first timed step."""
    rows = []
    for letter, measured in data.items():
        one, used = STORED[letter], counted(measured["pairs"])
        middle, least, most = spread([ratio(one, pair) for pair in used])
        cpu = spread([ratio(one, pair, "cpu") for pair in used])
        peaks = [over(measured, who, above) for who in BOTH]
        million = [f"{1e6 * over(measured, who, partial(per_token, one)):.0f}" for who in BOTH]
        losses = [f"{timed(one, used[0][who])[0]['loss']:.6f}" for who in BOTH]
        rows.append(
            (
                f"({letter}) {one.title}", f"**{middle:.2f}** [{least:.2f} .. {most:.2f}]",
                "{:.2f} [{:.2f} .. {:.2f}]".format(*cpu),
                " / ".join(f"{over(measured, who, partial(per_iteration, one)):.2f}" for who in BOTH),
                " / ".join(million), f"{peaks[0]:.0f} / {peaks[1]:.0f} = {peaks[0] / peaks[1]:.2f}", " / ".join(losses),
                f"{len(used)} + {len(measured['pairs']) - len(used)}",
                " to ".join(f"{load:.1f}" for load in measured["load"]),
            )
        )  # fmt: skip
    head = ("regime", "ratio of times", "of CPU seconds", "s per step", "s per million trained tokens",
            "peak above imports, MiB", "loss of the first timed step", "pairs + repeated", "load average")  # fmt: skip
    return table(head, rows)


def sweep(data: dict[str, list[Run]]) -> str:
    """TRL's time and memory for each micro-batch size."""
    rows = []
    for letter, runs in data.items():
        one = (REGIMES | STORED)[letter]
        fits = [run for run in runs if run["peak_mib"] < 12 * 1024]
        best = min(fits, key=partial(per_token, one))
        rows += [
            (
                f"({letter})", run["way"], f"{1e6 * per_token(one, run):.0f}", f"{above(run):.0f}",
                "fastest" if run is best else "",
            )
            for run in runs
        ]  # fmt: skip
    used = ", ".join(f"({letter}) {(REGIMES | STORED)[letter].micro_batch}" for letter in data)
    head = ("regime", "configuration", "s per million trained tokens", "peak above imports, MiB", "")
    note = f"One run each of sizes that divide a step. The figures above use {used}."
    return f"{table(head, rows)}\n{note}\n"


def frugal(data: dict[str, Run], pairs: dict[str, Data]) -> str:
    """TRL with gradient checkpointing and micro-batches of 8, and both systems at their settings for time."""
    rows = []
    for letter, run in data.items():
        if letter in pairs:
            one = REGIMES[letter]
            peaks = [above(run), *(over(pairs[letter], who, above) for who in ("trl", "groupwise"))]
            times = [per_token(one, run)]
            times += [over(pairs[letter], who, partial(per_token, one)) for who in ("trl", "groupwise")]
            rows.append((f"({letter})", *(f"{m:.0f}" for m in peaks), *(f"{1e6 * t:.0f}" for t in times)))
    head = ("regime", "TRL frugal, MiB", "TRL, MiB", "Groupwise, MiB", "TRL frugal, s per million tokens", "TRL",
            "Groupwise")  # fmt: skip
    note = "TRL frugal: gradient checkpointing and micro-batches of 8. Memory is the peak above the imports."
    return f"{table(head, rows)}\n{note}\n"


def grown(axis: str, runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Seconds per iteration and MiB above the imports, for each value of one size."""
    return [min(i["seconds"] for i in timed(one, run)) for one, run in zip(GROWTH[axis], runs)], list(map(above, runs))


def rates(seconds: Sequence[float], linear: Sequence[float], attention: Sequence[float]) -> tuple[float, float, float]:
    """Fit times: FLOPs per second of matrix products and of attention, and the largest relative error.

    Least squares of relative errors over a constant and both kinds of FLOPs.

    >>> linear, attention = [1, 2, 4, 8], [1, 4, 16, 64]
    >>> [round(x, 6) for x in rates([3 + a / 5 + b / 2 for a, b in zip(linear, attention)], linear, attention)]
    [5.0, 2.0, 0.0]
    """
    share = np.stack([np.ones(len(seconds)), linear, attention], 1) / np.asarray(seconds)[:, None]
    fit = np.linalg.lstsq(share, np.ones(len(seconds)), rcond=None)[0]
    return float(1 / fit[1]), float(1 / fit[2]), float(abs(share @ fit - 1).max())


def growth(data: dict[str, list[Run]]) -> str:
    """Growth exponents of time and memory, and of the FLOPs."""
    rows, notes = [], []
    for axis, runs in data.items():
        seconds, memory = grown(axis, runs)
        counts = [(workload.learner(one), workload.engine(one)) for one in GROWTH[axis]]
        linear = [sum(f.linear for f in pair) for pair in counts]
        attention = [sum(f.attention for f in pair) for pair in counts]
        share = [a / (a + b) for a, b in zip(attention, linear)]
        flops = exponent(DOUBLINGS, [a + b for a, b in zip(attention, linear)])
        if axis in ("prompt", "answer"):
            products, looks, worst = rates(seconds, linear, attention)
            notes.append(
                f"Fit for the {axis}: a constant, products at {products / 1e9:.0f} GFLOP/s and attention at "
                f"{looks / 1e9:.1f} GFLOP/s; each time within {worst:.0%}.\n"
            )
        rows.append(
            (
                axis, " / ".join(f"{s:.2f}" for s in seconds), f"**{exponent(DOUBLINGS, seconds):.2f}**",
                f"{flops:.2f}", f"{share[0]:.0%} to {share[-1]:.0%}", " / ".join(f"{m:.0f}" for m in memory),
                f"{exponent(DOUBLINGS, memory):.2f}",
            )
        )  # fmt: skip
    head = (
        "size",
        "s per iteration",
        "exponent",
        "exponent of FLOPs",
        "attention's share of FLOPs",
        "MiB above imports",
        "exponent",
    )
    return "\n".join([table(head, rows), *notes])


def curves(data: dict[str, dict[str, list[list[float]]]]) -> str:
    """Mean reward of the first and last ten iterations of each seed."""
    rows = [
        (f"({letter})", NAMES[who], str(seed), f"{mean(rewards[:10]):.3f}", f"{mean(rewards[-10:]):.3f}")
        for letter, systems in data.items()
        for who, seeds in systems.items()
        for seed, rewards in enumerate(seeds)
    ]
    return table(("regime", "system", "seed", "mean reward, first ten iterations", "last ten"), rows)


def settings(regimes: Iterable[Regime], pairs: dict[str, Data]) -> str:
    """The settings of each regime, and the versions that ran."""
    rows = []
    for one in regimes:
        net = one.net
        shape = "packaged calculator model"
        if net is not None:
            shape = (
                f"{net.model_family}, vocabulary {net.vocabulary_size:,}, width {net.hidden_size}, "
                f"{net.layers} layers, {net.heads} heads of {net.head_dim}, {net.kv_heads} for keys, "
                f"inner {net.mlp_width}, tied, random weights"
            )
        lengths = "natural, at most " + str(one.max_tokens) if one.lengths is None else str(one.lengths)
        rows.append(
            (
                f"({one.letter})", shape, f"{one.prompts} x {one.group}", str(one.prompt_tokens or "from the task"),
                lengths, f"{one.loss}, clip {one.low:g} / {one.high:g}", f"{one.minibatches} x {one.epochs}",
                f"{one.lr:g}, {one.decay}", f"{one.warmup} + {one.timed}", str(one.micro_batch),
            )
        )  # fmt: skip
    head = ("regime", "model", "prompts x group", "prompt tokens", "answer tokens", "objective", "minibatches x epochs",
            "learning rate", "iterations, warm-up + timed", "TRL's micro-batch")  # fmt: skip
    common = (
        "AdamW, fused, betas 0.9 and 0.999, eps 1e-8, no weight decay, gradient norm at most 1; temperature 1, no\n"
        "top-k or top-p, no KL, rewards scaled by the std of their group. TRL: SDPA, no gradient checkpointing."
    )
    versions: list[str] = []
    for data in list(pairs.values())[:1]:
        used = {who: data["pairs"][0][who]["versions"] for who in BOTH}
        versions = ["", *(f"{who}: {', '.join(f'{k} {v}' for k, v in used[who].items())}.\n" for who in BOTH)]
    return "\n".join([table(head, rows), common, *versions])
