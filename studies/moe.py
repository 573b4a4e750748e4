"""Mixtures of experts: how large a learning rate does each method stand? GSPO, arXiv:2507.18071, section 5.3.

Stated before the runs. After each update about a tenth of a mixture's experts change for the same tokens (recalled from
the paper), so token ratios fluctuate and GRPO can collapse. The paper says that GRPO then needs routing replay (R2: the
learner uses the experts of the old log-probs), and that GSPO does not.

A pilot saw this at one learning rate on one base, and nothing on a second base. So nothing is tuned here: five new
bases, one per seed, from random weights (studies/mixtures.py: 64 experts, eight active, three layers), and three
learning rates. 16 minibatches per iteration, with the bounds of the papers.

Compared, within a seed and thus within a base. A run is *stable* if its share of right answers over the last five
iterations is not below that over the first five. First: the number of stable rates, 0 to 3, GSPO minus GRPO and GRPO
with R2 minus GRPO; the claim is shown if an interval lies above 0. Second, since the first is coarse: the share of
right answers over the last five iterations, averaged over the rates. Beside it, the share of changed router choices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.figures import COLOURS
from studies.mixtures import mixture
from studies.study import NO_KL, Arm, Estimate, Exact, Measured, Study, cost, table

RIGHT, CHANGED, CLIPPED = "outcome/correct", "routing/changed", "clip_ratio/region_mean"
LAST = 20
RATES = ("5e-5", "1e-4", "2e-4")
BASE = ("model = @base", f"iterations = {LAST}", "prompts = 16", "method.group_size = 16", "method.minibatches = 16",
        "optimizer.decay = constant", "evaluate.problems = 16")  # fmt: skip
TOKEN = (NO_KL, "method.objective.surrogate.low = 0.2", "method.objective.surrogate.high = 0.27")
METHODS = {
    "grpo": ("GRPO", TOKEN),
    "gspo": ("GSPO", ("method.objective.surrogate.low = 3e-4", "method.objective.surrogate.high = 4e-4")),
    "replay": ("GRPO with R2", (*TOKEN, "method.routing.replay = learner")),
}


def arm(key: str, rate: str) -> Arm:
    """A method at a learning rate, on the base of the seed."""
    label, own = METHODS[key]
    settings = (*BASE, f"optimizer.lr = {rate}", *own)
    method = "gspo" if key == "gspo" else "grpo"
    return Arm(label=f"{label}, lr {rate}", method=method, task="calculator", settings=settings)


ARMS = {f"{key} {rate}": arm(key, rate) for rate in RATES for key in METHODS}


def total(estimates: Sequence[Estimate]) -> Estimate:
    """The sum within each seed."""
    return Estimate(tuple(map(sum, zip(*(x.values for x in estimates)))))


def ends(m: Measured, key: str, rate: str) -> Estimate:
    """The share of right answers over the last five iterations."""
    return m.mean(f"{key} {rate}", RIGHT, LAST - 4, LAST)


def stable(m: Measured, key: str) -> Estimate:
    """The number of stable rates of a method, by seed."""
    gains = [ends(m, key, rate).minus(m.mean(f"{key} {rate}", RIGHT, 1, 5)) for rate in RATES]
    return total([Estimate(tuple(float(gain >= 0) for gain in x.values)) for x in gains])


def right(m: Measured, key: str) -> Estimate:
    """The share of right answers at the end, averaged over the rates, by seed."""
    summed = total([ends(m, key, rate) for rate in RATES])
    return Estimate(tuple(x / len(RATES) for x in summed.values))


def comparison(m: Measured) -> str:
    """The table of the two comparisons."""
    rows = []
    for key, (label, _) in METHODS.items():
        counts, shares = stable(m, key), right(m, key)
        more, gain = counts.minus(stable(m, "grpo")), shares.minus(right(m, "grpo"))
        result = "" if key == "grpo" else "*more stable*" if more.interval[0] > 0 else "*not shown*"
        by_rate = " / ".join(f"{ends(m, key, rate).mean:.2f}" for rate in RATES)
        changed = total([m.mean(f"{key} {rate}", CHANGED, 1, LAST) for rate in RATES]).mean / len(RATES)
        rows.append((label, f"{counts.mean:.1f}", more if key != "grpo" else "", by_rate, gain if key != "grpo" else "",
                     f"{100 * changed:.2g} %", len(m.seeds), result))  # fmt: skip
    head = ("method", "stable rates of 3", "minus GRPO", f"right at the end at {' / '.join(RATES)}",
            "mean, minus GRPO", "choices changed", "bases", "result")  # fmt: skip
    return f"{table(head, rows)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["rates"]
    more = {key: stable(m, key).minus(stable(m, "grpo")) for key in ("gspo", "replay")}
    return {
        "rates": comparison(m),
        "moe": (
            f"- [Mixtures of experts](docs/studies/moe.md): of three learning rates, GSPO is stable at "
            f"{more['gspo'].brief} more than GRPO, and GRPO with routing replay at {more['replay'].brief} more."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["rates"]
    values = [
        (*key.split(), seed, metric, x)
        for key in m.arms
        for metric, first in ((RIGHT, LAST - 4), (CHANGED, 1), (CLIPPED, 1))
        for seed, x in zip(m.seeds, m.mean(key, metric, first, LAST).values, strict=True)
    ]
    return [("method", "learning rate", "seed", "metric", "mean"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["rates"]
    for axes, rate in zip(panels, RATES, strict=True):
        for i, (key, (label, _)) in enumerate(METHODS.items()):
            series = m.series(f"{key} {rate}", RIGHT)
            style = {"color": COLOURS[i], "linewidth": 2, "linestyle": ("-", "--", ":")[i], "label": label}
            axes.plot([at for at, _ in series], [x.mean for _, x in series], **style)
        axes.set(title=f"lr {rate}: right answers", xlabel="iteration", ylim=(0, 1))
    panels[0].legend(loc="upper left")


STUDY = Study(
    name="moe",
    page="docs/studies/moe.md",
    parts={"rates": ARMS},
    metrics=(RIGHT, CHANGED, CLIPPED),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Share of right answers over iterations at three learning rates on mixtures of experts, for GRPO, GSPO and "
    "GRPO with routing replay; means over bases.",
    panels=3,
    base=mixture,
    excerpts=("README.md",),
)
