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

Added after the runs: the rungs by base, and the verdict of *ordinary* on the share of right answers, as it states.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.data import GAP
from studies.figures import COLOURS
from studies.mixtures import BASES
from studies.stable_rates import HIGH, LOW, RIGHT, by_base, in_words, mean_spread, over_rates, parted, rung, spread
from studies.study import LEAST_ACCURACY, NO_KL, Arm, Exact, Measured, Study, cost, table

CHANGED, MEAN_GAP = "routing/changed", f"{GAP}/mean"
LAST = 20
RATES = ("1e-4", "1.4e-4", "2e-4")
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 16", "method.minibatches = 16",
        "optimizer.lr_scheduler = constant", "evaluate.problems = 16", "engine.max_logprob_diff = 1")  # fmt: skip
TOKEN = (NO_KL, "method.objective.surrogate.low = 0.2", "method.objective.surrogate.high = 0.27")
METHODS = {
    "grpo": ("GRPO", TOKEN),
    "gspo": ("GSPO", ("method.objective.surrogate.low = 3e-4", "method.objective.surrogate.high = 4e-4")),
    "R2": ("GRPO with R2", (*TOKEN, "method.router_replay = learner")),
    "R3": ("GRPO with R3", (*TOKEN, "method.router_replay = engine")),
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
FIRST, END = (1, 5), (LAST - 4, LAST)


def comparison(part: str, m: Measured) -> str:
    """The table of the two comparisons, with the changed choices, the spread of the ratios and the mean gap."""
    rows, (methods, rates) = [], PARTS[part]
    largest = {key: rung(m, key, rates, LAST) for key in methods}
    right = {key: over_rates(m, key, RIGHT, rates, *END) for key in methods}
    for key in methods:
        more, gain = (x[key].minus(x[methods[0]]) for x in (largest, right))
        by_rate = " / ".join(f"{m.mean(f'{key} {rate}', RIGHT, *END).mean:.2f}" for rate in rates)
        changed = " to ".join(f"{100 * over_rates(m, key, CHANGED, rates, *end).mean:.2g}" for end in (FIRST, END))
        spreads = " to ".join(f"{mean_spread(m, key, rates, *end).mean:.2g}" for end in (FIRST, END))
        gap = over_rates(m, key, MEAN_GAP, rates, 1, LAST).mean
        word = (gain.at_one_rate if part == "ordinary" else more).verdict
        compared = ("", "", "") if key == methods[0] else (more, gain, word)
        rows.append((METHODS[key][0], f"{largest[key].mean:.1f}", compared[0], by_rate, compared[1], f"{changed} %",
                     spreads, f"{gap:.1g}", len(m.seeds), compared[2]))  # fmt: skip
    than = f"minus {METHODS[methods[0]][0]}"
    judged = f"result of the {'right answers' if part == 'ordinary' else 'rungs'}"
    head = ("method", "largest stable rung", than, f"right at the end at {' / '.join(rates)}", f"mean, {than}",
            "choices changed", "spread of ratios", "mean gap", "bases", judged)  # fmt: skip
    beside = f"\n\n{parted(m, methods[0], methods[1], rates)}" if part == "engine" else ""
    return f"{table(head, rows)}{beside}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, methods = measured["rates"], PARTS["rates"][0]
    rungs = {key: rung(m, key, RATES, LAST) for key in methods}
    gspo, replay = (in_words(rungs[key].minus(rungs["grpo"])) for key in ("gspo", "R2"))
    text = f"The largest stable of three learning rates, beside GRPO's: with GSPO {gspo}; with routing replay {replay}"
    if ordinary := measured.get("ordinary"):
        gain = ordinary.mean("gspo 5e-5", RIGHT, *END).minus(ordinary.mean("grpo 5e-5", RIGHT, *END), LEAST_ACCURACY)
        text += f". At an ordinary rate GSPO's share of right answers minus GRPO's is {gain.at_one_rate.stated()}"
    return {
        **{part: comparison(part, m) for part, m in measured.items()},
        "bases": by_base(m, {key: METHODS[key][0] for key in methods}, RATES, LAST),
        "moe": f"{text}.",
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (*key.split(), seed, metric, i, x)
        for key, m in runs(measured).items()
        for metric in (RIGHT, CHANGED, LOW, HIGH)
        for i, estimate in m.series(key, metric)
        for seed, x in zip(m.seeds, estimate.values, strict=True)
    ]
    return [("method", "learning rate", "seed", "metric", "iteration", "value"), *values]


def runs(measured: Mapping[str, Measured]) -> dict[str, Measured]:
    """The arms of all parts, each once."""
    return {key: m for m in measured.values() for key in m.arms}


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    for key, m in runs(measured).items():
        method, rate = key.split()
        i, column = list(METHODS).index(method), (*PARTS["ordinary"][1], *RATES).index(rate)
        style = {"color": COLOURS[i], "linestyle": ("-", "--", ":", "-.")[i], "label": METHODS[method][0]}
        for axes, points in zip(panels[column::4], (m.series(key, RIGHT), spread(m, key), m.series(key, CHANGED))):
            axes.plot([at for at, _ in points], [x.mean for _, x in points], linewidth=2, **style)
        panels[column].set(title=f"right answers, lr {rate}", ylim=(0, 1))
        panels[4 + column].set(title="spread of ratios", yscale="log", ylim=(0.02, 4))
        panels[8 + column].set(title="changed choices", xlabel="iteration", ylim=(0, 0.04))
    panels[1].legend(loc="upper left")


STUDY = Study(
    name="moe",
    page="docs/studies/moe.md",
    parts=ARMS,
    metrics=(RIGHT, CHANGED, LOW, HIGH, MEAN_GAP, "clip_ratio/region_mean"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Mixtures of experts under GRPO, GSPO and GRPO with routing replay, at four learning rates: right answers, the "
    "spread of ratios, and changed choices over iterations.",
    panels=12,
    bases=BASES,
)
