"""The tables of RESULTS.md, each from the measurements that it shows."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

from benchmarks.beside import work
from benchmarks.beside.chart import exponent
from benchmarks.beside.pairs import Run, per_iteration, per_token, ratio, spread, timed
from benchmarks.beside.regimes import DOUBLINGS, GROWTH, REGIMES, Regime

Data = dict[str, Any]
BOTH = ("groupwise", "trl")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(("a", "b"), [("1", "2")]), end="")
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def sound(data: Data) -> list[Data]:
    return [pair for pair in data["pairs"] if pair["sound"]]


def over(data: Data, who: str, f: Callable[[Run], float]) -> float:
    """The median over a system's runs."""
    return median(f(pair[who]) for pair in sound(data))


def above(run: Run) -> float:
    """MiB of the peak above what the imports held."""
    return run["peak_mib"] - run["floor_mib"]


def phase(one: Regime, name: str, run: Run) -> float:
    """Seconds of a phase in an iteration."""
    return mean(iteration["phases"][name][0] for iteration in timed(one, run))


def met(reached: bool) -> str:
    return "yes" if reached else "**no**"


def ratios(pairs: dict[str, Data]) -> str:
    """Times and peaks of both, and whether the targets are met."""
    rows = []
    for letter, data in pairs.items():
        one = REGIMES[letter]
        middle, least, most = spread([ratio(one, pair) for pair in sound(data)])
        million = [f"{1e6 * over(data, who, partial(per_token, one)):.0f}" for who in BOTH]
        seconds = [f"{over(data, who, partial(per_iteration, one)):.2f}" for who in BOTH]
        peaks = [over(data, who, above) for who in BOTH]
        memory = peaks[0] / peaks[1]
        limit = f" (<= {one.memory:g}: {met(memory <= one.memory)})" if one.memory else ""
        cpu = median(ratio(one, pair, "cpu") for pair in sound(data))
        repeated = len(data["pairs"]) - len(sound(data))
        rows.append(
            (
                f"({letter}) {one.title}", f"**{middle:.2f}** [{least:.2f} .. {most:.2f}]", f"{cpu:.2f}",
                f"{one.target:g}: {met(middle >= one.target)}", " / ".join(seconds), " / ".join(million),
                f"{peaks[0]:.0f} / {peaks[1]:.0f} = {memory:.2f}{limit}", f"{len(sound(data))} + {repeated}",
            )
        )  # fmt: skip
    head = ("regime", "ratio of times", "of CPU seconds", "target", "s an iteration", "s a million trained tokens",
            "peak above imports, MiB", "pairs + repeated")  # fmt: skip
    told = "Where two numbers stand beside each other, the first is Groupwise's and the second TRL's."
    return f"{table(head, rows)}\n{told}\n"


def phases(pairs: dict[str, Data]) -> str:
    """Tokens a second in sampling and in all that is not sampling."""

    rows = []
    for letter, data in pairs.items():
        row = [f"({letter})"]
        for f in (sampled, learned):
            ours, theirs = (over(data, who, partial(f, REGIMES[letter])) for who in BOTH)
            row += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}"]
        rows.append(row)
    head = ("regime", "sampling, Groupwise", "TRL", "ratio", "learning, Groupwise", "TRL", "ratio")
    told = "Trained tokens a second. Sampling ends with the verdicts; learning is all the rest of an iteration."
    return f"{table(head, rows)}\n{told}\n"


def sampled(one: Regime, run: Run) -> float:
    """Trained tokens a second of sampling."""
    return tokens(one, run) / phase(one, "sample", run)


def learned(one: Regime, run: Run) -> float:
    """Trained tokens a second of all that is not sampling."""
    return tokens(one, run) / (per_iteration(one, run) - phase(one, "sample", run))


def tokens(one: Regime, run: Run) -> float:
    """Trained tokens of an iteration."""
    return mean(iteration["tokens"] for iteration in timed(one, run))


def limits(pairs: dict[str, Data]) -> str:
    """How far Groupwise is from what the core can do, where lengths are forced and work can be counted."""
    rows = []
    for letter, data in pairs.items():
        if "limits" not in data:
            continue
        one, most = REGIMES[letter], data["limits"]
        sample = over(data, "groupwise", partial(phase, one, "sample"))
        learn = over(data, "groupwise", partial(phase, one, "learn"))
        learner, engine = (work.learner(one).all / learn / 1e9, work.engine(one).all / sample / 1e9)
        traffic = work.traffic(one) / sample / 1e9
        rows.append(
            (
                f"({letter})", f"{most['gflops']:.0f}", f"{learner:.0f}", f"{learner / most['gflops']:.0%}",
                f"{engine:.0f}", f"{engine / most['gflops']:.0%}", f"{most['read']:.1f}", f"{traffic:.1f}",
                f"{traffic / most['read']:.0%}",
            )
        )  # fmt: skip
    head = ("regime", "GEMM peak, GFLOP/s", "learner", "share", "engine", "share", "reading memory, GB/s",
            "engine's weights", "share")  # fmt: skip
    told = (
        "The peak is the fastest float32 product of the learner's shapes. FLOPs that are computed again\n"
        "to save memory do not count as done. An engine's weights are read once for every round of tokens; with many\n"
        "rows a round is bound by products, with few by memory, so the larger of its shares is the nearer limit.\n"
        "Targets: learner at least 60 % in (g), engine at least 50 % of reading once weights exceed the cache."
    )
    return f"{table(head, rows)}\n{told}\n" if rows else "Not measured.\n"


def start(pairs: dict[str, Data]) -> str:
    """Seconds from the start of the process to the first iteration."""
    rows = [
        [f"({letter})", *(f"{over(data, who, lambda run: run['start_seconds']):.1f}" for who in BOTH)]
        for letter, data in pairs.items()
    ]
    told = "Seconds from the start of the process to its first iteration: imports, model, optimizer. Target: 5 in (a)."
    return f"{table(('regime', 'Groupwise', 'TRL'), rows)}\n{told}\n"


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


def growth(data: dict[str, list[Run]]) -> str:
    """Exponents of time and memory, beside those of the FLOPs that were asked for."""
    rows = []
    for axis, runs in data.items():
        seconds, memory = grown(axis, runs)
        asked = [(work.learner(one), work.engine(one)) for one in GROWTH[axis]]
        attention = [sum(f.attention for f in pair) / sum(f.all for f in pair) for pair in asked]
        flops = exponent(DOUBLINGS, [sum(f.all for f in pair) for pair in asked])
        rows.append(
            (
                axis, " / ".join(f"{s:.2f}" for s in seconds), f"**{exponent(DOUBLINGS, seconds):.2f}**",
                f"{flops:.2f}", f"{attention[0]:.0%} to {attention[-1]:.0%}", " / ".join(f"{m:.0f}" for m in memory),
                f"{exponent(DOUBLINGS, memory):.2f}",
            )
        )  # fmt: skip
    head = ("size", "s an iteration", "exponent", "of the FLOPs", "attention's share", "MiB above imports", "exponent")
    return table(head, rows)


def curves(data: dict[str, list[list[float]]]) -> str:
    """First and last ten iterations of each seed."""
    rows = [
        (
            {"groupwise": "Groupwise", "trl": "TRL"}[who], str(seed), f"{mean(rewards[:10]):.3f}",
            f"{mean(rewards[-10:]):.3f}",
        )
        for who, seeds in data.items()
        for seed, rewards in enumerate(seeds)
    ]  # fmt: skip
    return table(("system", "seed", "mean reward, first ten iterations", "last ten"), rows)


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
                lengths, f"{one.loss}, clip {one.low:g} / {one.high:g}", f"{one.minibatches} x {one.passes}",
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
