"""Clip fraction: GSPO clips far more tokens than GRPO. And does it learn faster? GSPO, arXiv:2507.18071.

Stated before the runs. The paper reports that GSPO clips two orders of magnitude more tokens than GRPO, each with its
own bounds, and that it nevertheless learns faster. A sequence ratio is a mean of log-ratios over the answer, so it
varies less than a token's ratio, and the paper's bounds for it are 500 times narrower: 3e-4 and 4e-4 against 0.2 and
0.27.

Compared, within a seed, at two learning rates: the share of clipped tokens over all eight iterations, and the reward
over the last four. The base is the packaged model on its task, with four minibatches, since without a second step every
ratio is 1. The clip fraction should be higher with GSPO at each learning rate, and so should the reward at the largest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.figures import COLOURS
from studies.study import LEAST_ACCURACY, NO_KL, Arm, Estimate, Exact, Measured, Study, cost, table

CLIPPED, REWARD = "clip_ratio/region_mean", "outcome/correct"
LAST = 8
LEAST_CLIPPED = 0.05
"""The smallest difference of shares of clipped tokens that counts."""
BASE = (f"iterations = {LAST}", "method.group_size = 16", "method.minibatches = 4", "evaluate.problems = 16",
        "optimizer.lr_scheduler = constant")  # fmt: skip
RATES = ("1e-6", "1e-4")
BOUNDS = {
    "grpo": (NO_KL, "method.objective.surrogate.low = 0.2", "method.objective.surrogate.high = 0.27"),
    "gspo": ("method.objective.surrogate.low = 3e-4", "method.objective.surrogate.high = 4e-4"),
}


def arm(method: str, rate: str) -> Arm:
    """A method with its paper's bounds, at a learning rate."""
    settings = (*BASE, f"optimizer.lr = {rate}", *BOUNDS[method])
    return Arm(label=f"{method.upper()}, lr {rate}", method=method, task="calculator", settings=settings)


ARMS = {f"{method} {rate}": arm(method, rate) for rate in RATES for method in BOUNDS}


def percent(x: Estimate) -> str:
    """A share in percent, with its interval."""
    low, high = x.interval
    return f"{100 * x.mean:.3g} % ({100 * low:.3g} to {100 * high:.3g})"


def shares(m: Measured, rate: str) -> tuple[list[Estimate], list[Estimate]]:
    """The shares of clipped tokens and of right answers at the end, at a learning rate, of GRPO and of GSPO."""
    clipped = [m.mean(f"{method} {rate}", CLIPPED, 1, LAST) for method in BOUNDS]
    return clipped, [m.mean(f"{method} {rate}", REWARD, LAST - 3, LAST) for method in BOUNDS]


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, rows = measured["rates"], []
    for rate in RATES:
        clipped, right = shares(m, rate)
        result = clipped[1].minus(clipped[0], LEAST_CLIPPED).result("more clipped", "less clipped")
        rows.append((rate, *map(percent, clipped), *(f"{x.mean:.3f}" for x in right), right[1].minus(right[0]),
                     len(m.seeds), result))  # fmt: skip
    head = ("learning rate", "GRPO clips", "GSPO clips", "GRPO right", "GSPO right", "right: difference", "seeds",
            "clipping")  # fmt: skip
    clipped, right = shares(m, "1e-4")
    return {
        "rates": f"{table(head, rows)}\n\n{cost(m)}",
        "clip_fraction": (
            f"At a learning rate of 1e-4 GSPO clips a share "
            f"of {clipped[1].brief} of the tokens, GRPO {clipped[0].brief}; the share of right answers at the end "
            f"differs by {right[1].minus(right[0], LEAST_ACCURACY).at_one_rate.stated()}."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["rates"]
    values = [
        (key, seed, metric, x)
        for key in m.arms
        for metric, first in ((CLIPPED, 1), (REWARD, LAST - 3))
        for seed, x in zip(m.seeds, m.mean(key, metric, first, LAST).values, strict=True)
    ]
    return [("arm", "seed", "metric", "mean"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["rates"]
    for axes, (metric, first, title) in zip(
        panels, ((CLIPPED, 1, "share of clipped tokens"), (REWARD, LAST - 3, "share of right answers at the end"))
    ):
        for i, method in enumerate(BOUNDS):
            values = [m.mean(f"{method} {rate}", metric, first, LAST).values for rate in RATES]
            for at, xs in enumerate(values):
                axes.scatter(
                    [at + 0.12 * i] * len(xs),
                    xs,
                    s=16,
                    zorder=3,
                    color=COLOURS[i],
                    label=None if at else method.upper(),
                )
        axes.set(title=title, xlabel="learning rate", xticks=range(len(RATES)), xticklabels=RATES)
    panels[0].set_yscale("symlog", linthresh=1e-4)
    panels[0].set_ylim(0, 1)
    panels[0].legend(loc="upper left")


STUDY = Study(
    name="clip_fraction",
    page="docs/studies/clip-fraction.md",
    parts={"rates": ARMS},
    metrics=(CLIPPED, REWARD),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Share of clipped tokens and of right answers for GRPO and GSPO at two learning rates; a point is a seed.",
    panels=2,
)
