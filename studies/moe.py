"""Mixtures of experts: how large a learning rate does each method stand? GSPO, arXiv:2507.18071, section 5.3.

Stated before the runs. After each update about a tenth of a mixture's experts change for the same tokens (recalled from
the paper), so token ratios fluctuate and GRPO can collapse. The paper says that GRPO then needs routing replay (R2: the
learner uses the experts of the old log-probs), and that GSPO does not. R3 (arXiv:2510.11370) replays the engine's.

In an earlier attempt four of 45 runs were ended by the check of the engine's log-probs. A trace of one of them: of
507,750 choices (a token at a router) one differs between engine and learner, where the logits of two experts are 1e-7
apart. It moved a log-prob by 0.017; in all other answers the gap is below 3e-5. That is rounding, so the bound on the
largest gap is 1 here; the mean gap, which other weights in the engine would raise, is shown. That attempt was mostly
stable at 1e-4 and never at 2e-4, so the rates lie there. Five new bases (studies/mixtures.py), one per seed; 16
minibatches per iteration; the bounds of the papers.

Compared, within a seed and thus within a base. A run is *stable* if its share of right answers over the last five
iterations is not below that over the first five. First: the rung of the largest stable rate, 0 (none) to 3, of GSPO and
of GRPO with replay, minus that of GRPO; *shown* if the interval lies above 0, *opposite* if below. Second, since the
first is coarse: the share of right answers over the last five iterations, averaged over the rates. Beside it: the share
of changed router choices, and the spread of the method's own ratios, log(p99 / p1), early and late. The part *ordinary*
has the same table at a rate of 5e-5, at which all runs of the earlier attempt were stable: there the share of right
answers is what can differ. The part *engine* compares R3 with R2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.data import GAP
from studies.figures import COLOURS
from studies.mixtures import BASES
from studies.stable_rates import HIGH, LOW, RIGHT, mean_spread, over_rates, rung, spread
from studies.study import NO_KL, Arm, Exact, Measured, Study, cost, table

CHANGED, MEAN_GAP = "routing/changed", f"{GAP}/mean"
LAST = 20
RATES = ("1e-4", "1.4e-4", "2e-4")
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 16", "method.minibatches = 16",
        "optimizer.decay = constant", "evaluate.problems = 16", "engine.max_gap = 1")  # fmt: skip
TOKEN = (NO_KL, "method.objective.surrogate.low = 0.2", "method.objective.surrogate.high = 0.27")
METHODS = {
    "grpo": ("GRPO", TOKEN),
    "gspo": ("GSPO", ("method.objective.surrogate.low = 3e-4", "method.objective.surrogate.high = 4e-4")),
    "R2": ("GRPO with R2", (*TOKEN, "method.routing.replay = learner")),
    "R3": ("GRPO with R3", (*TOKEN, "method.routing.replay = engine")),
}


def arm(key: str, rate: str, model: str = "@base") -> Arm:
    """A method at a learning rate, on the base of the seed."""
    label, own = METHODS[key]
    settings = (f"model = {model}", *BASE, f"optimizer.lr = {rate}", *own)
    method = "gspo" if key == "gspo" else "grpo"
    return Arm(label=f"{label}, lr {rate}", method=method, task="calculator", settings=settings)


PARTS = {
    "rates": (("grpo", "gspo", "R2"), RATES),
    "ordinary": (("grpo", "gspo", "R2"), ("5e-5",)),
    "engine": (("R2", "R3"), RATES),
}
"""The methods and the learning rates of each part. The first method is what the others are compared with."""
ARMS = {
    part: {f"{key} {rate}": arm(key, rate) for rate in rates for key in methods}
    for part, (methods, rates) in PARTS.items()
}


def comparison(m: Measured, methods: Sequence[str], rates: Sequence[str]) -> str:
    """The table of the two comparisons, with the changed choices, the spread of the ratios and the mean gap."""
    rows, ends = [], ((1, 5), (LAST - 4, LAST))
    largest = {key: rung(m, key, rates, LAST) for key in methods}
    right = {key: over_rates(m, key, RIGHT, rates, *ends[1]) for key in methods}
    for key in methods:
        more, gain = (x[key].minus(x[methods[0]]) for x in (largest, right))
        by_rate = " / ".join(f"{m.mean(f'{key} {rate}', RIGHT, *ends[1]).mean:.2f}" for rate in rates)
        changed = " to ".join(f"{100 * over_rates(m, key, CHANGED, rates, *end).mean:.2g}" for end in ends)
        spreads = " to ".join(f"{mean_spread(m, key, rates, *end).mean:.2g}" for end in ends)
        gap = over_rates(m, key, MEAN_GAP, rates, 1, LAST).mean
        compared = ("", "", "") if key == methods[0] else (more, gain, more.verdict)
        rows.append((METHODS[key][0], f"{largest[key].mean:.1f}", compared[0], by_rate, compared[1], f"{changed} %",
                     spreads, f"{gap:.1g}", len(m.seeds), compared[2]))  # fmt: skip
    than = f"minus {METHODS[methods[0]][0]}"
    head = ("method", "largest stable rung", than, f"right at the end at {' / '.join(rates)}", f"mean, {than}",
            "choices changed", "spread of ratios", "mean gap", "bases", "result")  # fmt: skip
    return f"{table(head, rows)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["rates"]
    largest = {key: rung(m, key, RATES, LAST) for key in PARTS["rates"][0]}
    more = {key: x.minus(largest["grpo"]).brief for key, x in largest.items()}
    return {
        **{part: comparison(m, *PARTS[part]) for part, m in measured.items()},
        "moe": (
            f"- [Mixtures of experts](docs/studies/moe.md): of three learning rates on {len(m.seeds)} bases, the "
            f"largest stable one is {more['gspo']} rungs above GRPO's with GSPO, and {more['R2']} with routing replay."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["rates"]
    values = [
        (*key.split(), seed, metric, i, x)
        for key in m.arms
        for metric in (RIGHT, CHANGED, LOW, HIGH)
        for i, estimate in m.series(key, metric)
        for seed, x in zip(m.seeds, estimate.values, strict=True)
    ]
    return [("method", "learning rate", "seed", "metric", "iteration", "value"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["rates"]
    for i, key in enumerate(PARTS["rates"][0]):
        style = {"color": COLOURS[i], "linewidth": 2, "linestyle": ("-", "--", ":")[i], "label": METHODS[key][0]}
        series = [m.series(f"{key} {rate}", RIGHT) for rate in RATES]
        series += [m.series(f"{key} 2e-4", CHANGED), *(spread(m, f"{key} {rate}") for rate in RATES)]
        for axes, points in zip((*panels[:3], *panels[4:]), series, strict=True):
            axes.plot([at for at, _ in points], [x.mean for _, x in points], **style)
        panels[3].scatter(
            [i + 0.12 * j for j in range(len(m.seeds))], rung(m, key, RATES, LAST).values, color=COLOURS[i]
        )
    for axes, rate in zip(panels[:3], RATES, strict=True):
        axes.set(title=f"right answers, lr {rate}", ylim=(0, 1))
    panels[3].set(title="largest stable rung, by base", ylim=(-0.2, 3.2), xticks=[], yticks=range(4))
    panels[4].set(title="changed choices, lr 2e-4", xlabel="iteration")
    for axes, rate in zip(panels[5:], RATES, strict=True):
        axes.set(title=f"spread of ratios, lr {rate}", xlabel="iteration", yscale="log")
    panels[0].legend(loc="upper left")


STUDY = Study(
    name="moe",
    page="docs/studies/moe.md",
    parts=ARMS,
    metrics=(RIGHT, CHANGED, LOW, HIGH, MEAN_GAP, "clip_ratio/region_mean"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Mixtures of experts under GRPO, GSPO and GRPO with routing replay: right answers over iterations at "
    "three learning rates, the largest stable rate by base, changed experts, and the spread of ratios.",
    panels=8,
    bases=BASES,
    excerpts=("README.md",),
)
