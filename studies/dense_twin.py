"""The dense twin: do GRPO and GSPO differ in a mixture of experts alone? GSPO, arXiv:2507.18071, section 5.3.

Stated before the runs. The paper blames changed experts for the collapse of GRPO, so a dense model should not have the
difference that a mixture has. The results of the mixtures (studies/moe.py) are known: at these rates none of their
differences excludes 0. So the question is whether a dense model stands more, and whether its ratios spread less.

The twin (studies/mixtures.py) is dense, and a token uses as many weights as in the mixture. The warm start has the same
demonstrations in the same order. Five new bases, one per seed; bounds, minibatches and iterations are those of the
mixtures, at their lowest and their highest rate. Nothing was tried on a twin before.

Compared, within a seed: the share of right answers over the last five iterations, averaged over the two rates. First,
GSPO minus GRPO on the twin: *shown* if the interval lies above 0, *opposite* if below. Second, that difference on the
mixture minus that on the twin, with the same words: the paper says that it is above 0. Beside them: the rung of the
largest stable rate, 0 to 2, as in the study of mixtures, and the spread of the ratios, log(p99 / p1).

Added after the runs: the part *both*, the comparisons at the lower rate, from which each arm chooses its own. They are
the result; means over two rates that the arms share decide nothing between methods.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.figures import line
from studies.mixtures import BASES
from studies.moe import LAST, METHODS, arm
from studies.stable_rates import HIGH, LOW, RIGHT, mean_spread, over_rates, rung
from studies.study import LEAST_ACCURACY, Arm, Choice, Estimate, Exact, Measured, Study, cost, table

RATES = ("1e-4", "2e-4")
NAMES = {"twin": "dense models", "mixture": "mixtures of experts"}
MODELS = {"twin": "@twin", "mixture": "@base"}


def arms(model: str) -> dict[str, Arm]:
    """Both methods at both rates on a model."""
    return {f"{key} {rate}": arm(key, rate, model) for rate in RATES for key in ("grpo", "gspo")}


PARTS = {name: arms(model) for name, model in MODELS.items()}
BOTH = {
    f"{method} {name}": arm(method, RATES[0], model) for name, model in MODELS.items() for method in ("grpo", "gspo")
}
"""The lower rate: the part in which each arm chooses its own (studies/tuning.py)."""


def right(m: Measured, key: str, first: int = LAST - 4, last: int = LAST) -> Estimate:
    """A method's share of right answers, averaged over the rates."""
    return over_rates(m, key, RIGHT, RATES, first, last)


def gain(m: Measured) -> Estimate:
    """GSPO's share of right answers at the end, minus GRPO's, at rates that both share."""
    return right(m, "gspo").minus(right(m, "grpo"), LEAST_ACCURACY).at_one_rate


def gain_in(m: Measured, name: str) -> Estimate:
    """GSPO's share of right answers at the end minus GRPO's, on a kind of model, in the part `both`."""
    gspo, grpo = (m.mean(f"{key} {name}", RIGHT, LAST - 4, LAST) for key in ("gspo", "grpo"))
    return gspo.minus(grpo, LEAST_ACCURACY)


def more_in_mixture(m: Measured) -> Estimate:
    """That difference on the mixture minus that on the twin."""
    return gain_in(m, "mixture").minus(gain_in(m, "twin"))


def both(m: Measured) -> str:
    """The table of the part `both`."""
    compared = [(f"{name}: GSPO - GRPO", gain_in(m, name)) for name in MODELS]
    compared.append(("mixture minus twin", more_in_mixture(m)))
    arms = [(*key.split()[::-1], m.mean(key, RIGHT, 1, 5), m.mean(key, RIGHT, LAST - 4, LAST)) for key in m.arms]
    results = [(what, x, len(x.values), x.verdict) for what, x in compared]
    first = table(("model", "method", "right, first five", "right at the end"), arms)
    return f"{first}\n\n{table(('right at the end', 'difference', 'bases', 'result'), results)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    pairs, chosen = {name: m for name, m in measured.items() if name in NAMES}, measured["both"]
    rows, gains = [], {name: gain(m) for name, m in pairs.items()}
    for name, m in pairs.items():
        for key in ("grpo", "gspo"):
            by_rate = (f"{m.mean(f'{key} {rate}', RIGHT, LAST - 4, LAST).mean:.2f}" for rate in RATES)
            spreads = (f"{mean_spread(m, key, RATES, *end).mean:.2g}" for end in ((1, 5), (LAST - 4, LAST)))
            rungs = " / ".join(f"{x:.0f}" for x in rung(m, key, RATES, LAST).values)
            first = f"{right(m, key, 1, 5).mean:.2f}"
            rows.append((name, METHODS[key][0], first, *by_rate, rungs, " to ".join(spreads)))
    compared = [(f"{name}: GSPO - GRPO", x) for name, x in gains.items()]
    if len(gains) == 2:
        compared.append(("mixture minus twin", gains["mixture"].minus(gains["twin"])))
    head = ("model", "method", "right, first five", *(f"right at the end, lr {rate}" for rate in RATES),
            "largest stable rung, by base", "spread of ratios")  # fmt: skip
    results = [(what, x, len(x.values), x.verdict) for what, x in compared]
    return {
        "both": both(chosen),
        "twin": f"{table(head, rows)}\n\n{table(('right at the end', 'difference', 'bases', 'result'), results)}\n\n"
        f"{cost(measured['twin'])}",
        "dense_twin": "GSPO's share of right answers minus GRPO's is "
        + " and ".join(f"{gain_in(chosen, name).stated()} on {kind}" for name, kind in NAMES.items())
        + f"; the second minus the first is {more_in_mixture(chosen).stated()}.",
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (name, *key.split(), seed, metric, i, x)
        for name, m in measured.items()
        if name in NAMES
        for key in m.arms
        for metric in (RIGHT, LOW, HIGH)
        for i, estimate in m.series(key, metric)
        for seed, x in zip(m.seeds, estimate.values, strict=True)
    ]
    return [("model", "method", "learning rate", "seed", "metric", "iteration", "value"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    pairs = [(name, rate) for name in NAMES if name in measured for rate in RATES]
    for axes, (name, rate) in zip(panels, pairs, strict=False):
        for i, key in enumerate(("grpo", "gspo")):
            line(axes, measured[name].series(f"{key} {rate}", RIGHT), i, METHODS[key][0], dashed=bool(i))
        axes.set(title=f"{name}, lr {rate}", xlabel="iteration", ylim=(0, 1))
    panels[0].set_ylabel("right answers")
    panels[-1].legend(loc="upper right")


STUDY = Study(
    name="dense_twin",
    page="docs/studies/dense-twin.md",
    parts={**PARTS, "both": BOTH},
    metrics=(RIGHT, LOW, HIGH),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Share of right answers over iterations under GRPO and GSPO: on dense models, and on mixtures of experts.",
    panels=4,
    bases=BASES,
    tuned={"both": Choice(RIGHT, 5)},
)
