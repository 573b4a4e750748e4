"""Clip-higher: does a larger upper bound keep exploration? A dose-response. DAPO, arXiv:2503.14476, section 3.1.

Stated before the runs. The upper bound 1 + 0.2 of a ratio holds back rare tokens: one of probability 0.01 can rise to
0.012 in an iteration. DAPO raises the bound to 0.28 and reports more entropy and higher accuracy. So the effect should
grow with the bound: 0.2, 0.28 and 0.4.

The task is `tiny_countdown`, whose base searches, and on which training lowers pass@64 (studies/pass_at_k.py). GRPO
without KL, with four minibatches and two epochs, so that ratios reach the bounds; 30 iterations. Nothing was tuned:
the learning rate is that of the recipe.

Compared, within a seed, each bound minus 0.2: the entropy over all iterations, pass@64 and pass@1 on held-out problems
after training. The claim is shown if the interval of a difference in entropy or in pass@64 lies above 0. Beside it: the
share of tokens that are clipped at the high side.

Changed after the runs, to the rule of claims (studies/claim.py): if the bound 0.2 clips less than 0.01 of the tokens at
the high side in the first five iterations, a larger bound had nothing to do, and *it did not act*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from studies.claim import EARLY
from studies.figures import COLOURS, line
from studies.study import (
    LEAST_ACCURACY,
    LEAST_PASSES,
    NO_KL,
    Arm,
    Choice,
    Estimate,
    Exact,
    Measured,
    Study,
    cost,
    table,
)

ENTROPY, CLIPPED, ONE, MANY = "entropy", "clip_ratio/high_mean", "eval/accuracy", "eval/pass@64"
LAST = 30
CLAIMED = {"entropy": ENTROPY, "pass@64": MANY}
"""The claim says that these are higher."""
LEAST = {ENTROPY: 0.02, CLIPPED: 0.02, ONE: LEAST_ACCURACY, MANY: LEAST_PASSES}
"""The smallest differences that count."""
LEAST_ACTED = 0.01
"""The share of tokens that the bound 0.2 has to clip at the high side, so that a larger one has something to do."""
BOUNDS = ("0.2", "0.28", "0.4")
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 8", "method.minibatches = 4", "method.epochs = 2",
        "optimizer.lr_scheduler = constant", "evaluate.samples = 64", NO_KL)  # fmt: skip


def arm(bound: str) -> Arm:
    """GRPO with an upper bound."""
    settings = (*BASE, f"method.objective.surrogate.high = {bound}")
    return Arm(label=f"high = {bound}", method="grpo", task="tiny_countdown", settings=settings)


ARMS = {bound: arm(bound) for bound in BOUNDS}


def values(m: Measured, bound: str) -> dict[str, Estimate]:
    """What is compared, by metric: training metrics over all iterations, held-out ones after the last."""
    over = {metric: m.mean(bound, metric, 1, LAST) for metric in (ENTROPY, CLIPPED)}
    return over | {metric: m.mean(bound, metric, LAST, LAST) for metric in (MANY, ONE)}


def had_to_act(m: Measured) -> Estimate:
    """The share of tokens that the bound 0.2 clips at the high side in the first iterations."""
    return m.mean(BOUNDS[0], CLIPPED, 1, EARLY)


def gains(m: Measured, bound: str) -> dict[str, Estimate]:
    """The differences to the bound 0.2, by metric."""
    plain, acted = values(m, BOUNDS[0]), had_to_act(m).mean >= LEAST_ACTED
    found = {metric: x.minus(plain[metric], LEAST[metric]) for metric, x in values(m, bound).items()}
    return {metric: replace(x, acted=acted) for metric, x in found.items()}


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, rows = measured["bounds"], []
    for bound in BOUNDS:
        own, more = values(m, bound), gains(m, bound)
        results = (f"{name} {more[metric].result('higher', 'lower')}" for name, metric in CLAIMED.items())
        differences = [more[metric] if bound != BOUNDS[0] else "" for metric in (ENTROPY, MANY, ONE)]
        rows.append((bound, f"{own[CLIPPED].mean:.2g}", f"{own[ENTROPY].mean:.3f}", differences[0],
                     f"{own[MANY].mean:.3f}", differences[1], f"{own[ONE].mean:.3f}", differences[2],
                     "" if bound == BOUNDS[0] else ", ".join(results)))  # fmt: skip
    head = ("upper bound", "clipped high", "entropy", "minus 0.2", "pass@64", "minus 0.2", "pass@1", "minus 0.2",
            "result")  # fmt: skip
    more = gains(m, "0.28")
    return {
        "bounds": f"{table(head, rows)}\n\n{len(m.seeds)} seeds. Before training pass@64 is "
        f"{m.mean(BOUNDS[0], MANY, 0, 0).mean:.3f}. In the first {EARLY} iterations the bound 0.2 clips "
        f"{100 * had_to_act(m).mean:.2f} % of the tokens at the high side; at least {100 * LEAST_ACTED:g} % are "
        f"needed for a verdict.\n\n{cost(m)}",
        "clip_higher": (
            f"With an upper bound of 0.28 for 0.2 the entropy differs by "
            f"{more[ENTROPY].stated('higher', 'lower')} and pass@64 by {more[MANY].stated('higher', 'lower')}."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["bounds"]
    cells = [
        (bound, seed, metric, x)
        for bound in BOUNDS
        for metric, estimate in values(m, bound).items()
        for seed, x in zip(m.seeds, estimate.values, strict=True)
    ]
    return [("upper bound", "seed", "metric", "value"), *cells]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["bounds"]
    for i, bound in enumerate(BOUNDS):
        label = f"{m.arms[bound].label}, lr {m.arms[bound].trial(0).recipe().optimizer.lr:.1g}"
        line(panels[0], m.series(bound, ENTROPY), i, label)
        xs = values(m, bound)[MANY].values
        panels[1].scatter([i] * len(xs), xs, s=16, zorder=3, color=COLOURS[i])
    panels[0].set(title="entropy", xlabel="iteration")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="lower left")
    panels[1].set(title="pass@64 after training", xlabel="upper bound", xticks=range(len(BOUNDS)), xticklabels=BOUNDS)


STUDY = Study(
    name="clip_higher",
    page="docs/studies/clip-higher.md",
    parts={"bounds": ARMS},
    metrics=(ENTROPY, CLIPPED, ONE, MANY),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Entropy over iterations and held-out pass@64 after training, for three upper bounds of the ratio.",
    panels=2,
    tuned={"bounds": Choice(ONE, 1)},
)
