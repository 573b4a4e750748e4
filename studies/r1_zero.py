"""R1-Zero: accuracy and length rise together. Does the length explain the accuracy? Dr. GRPO, arXiv:2503.20783.

Stated before the runs. DeepSeek-R1-Zero (arXiv:2501.12948) shows accuracy and length rising together from a base model.
Dr. GRPO asks what the base can do already: with a template that hides its abilities, reinforcement learning first
recovers them.

Budget: the packaged model guesses, or writes its steps. With the full budget accuracy and length should both rise. With
a budget of twelve tokens no chain of steps fits, so accuracy should stay low. Compared, within a seed: the share of
right sampled answers over the last five iterations, full budget minus short budget.

Template: the same model with the template that it was trained with, with `{prompt}=` and with `;{prompt}`. Accuracy at
the first iteration should be lower with a strange template, and should rise in training. Compared, within a seed: last
five iterations minus first iteration.

Added after the first runs, in which `;{prompt}` did not rise: the same with 60 iterations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.figures import line
from studies.study import LEAST_ACCURACY, Arm, Exact, Measured, Study, cost, table

RIGHT, LENGTH = "outcome/correct", "completions/mean_length"
GREEDY, SAMPLED = "eval/accuracy_greedy", "eval/accuracy"
LAST = 20
RESULTS = ("rises", "falls")
BASE = (f"iterations = {LAST}", "method.group_size = 16", "method.minibatches = 4", "evaluate.every = 10",
        "method.objective.surrogate.low = 0.05", "method.objective.surrogate.high = 0.05")  # fmt: skip


def arm(label: str, *settings: str) -> Arm:
    """An arm on the packaged recipe: GSPO with its bounds."""
    return Arm(label=label, method="gspo", task="calculator", settings=(*BASE, *settings))


OWN = arm("own template, 48 tokens")
BUDGET = {"full": OWN, "short": arm("at most 12 tokens", "sampling.max_tokens = 12")}
TEMPLATE = {"own": OWN, "after": arm("`{prompt}=`", "template = {prompt}="),
            "before": arm("`;{prompt}`", "template = ;{prompt}")}  # fmt: skip
LONG = {"before": arm("`;{prompt}`", "template = ;{prompt}", "iterations = 60")}


def part(m: Measured) -> str:
    """The table of one comparison of arms."""
    rows, n = [], len(m.runs(next(iter(m.arms)))[0].tokens)
    for key, one in m.arms.items():
        first, last = m.mean(key, RIGHT, 1, 1), m.mean(key, RIGHT, n - 4, n)
        lengths = [m.mean(key, LENGTH, *ends) for ends in ((1, 1), (n - 4, n))]
        greedy = [m.mean(key, GREEDY, at, at).mean for at in (0, n)]
        change = last.minus(first, LEAST_ACCURACY)
        result = change.result(*RESULTS)
        rows.append((one.label, f"{first.mean:.3f}", last, change, f"{greedy[0]:.3f} -> {greedy[1]:.3f}",
                     f"{lengths[0].mean:.1f} -> {lengths[1].mean:.1f}", len(m.seeds), result))  # fmt: skip
    head = ("arm", "right, first", "right, last five", "change", "held-out greedy", "length", "seeds", "result")
    return f"{table(head, rows)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["budget"]
    gap = m.mean("full", RIGHT, LAST - 4, LAST).minus(m.mean("short", RIGHT, LAST - 4, LAST))
    change = {key: m.mean(key, RIGHT, LAST - 4, LAST).minus(m.mean(key, RIGHT, 1, 1), LEAST_ACCURACY) for key in m.arms}
    low, high = gap.interval
    return {
        **{name: part(one) for name, one in measured.items()},
        "gap": f"With the full budget the share of right answers at the end is higher by {gap.mean:.3f} (95 % interval "
        f"{low:.3f} to {high:.3f}, {len(m.seeds)} seeds).",
        "r1_zero": (
            f"Accuracy and length rise together; the share of right answers "
            f"changes by {change['full'].stated(*RESULTS)}, and in a budget without room for the steps by "
            f"{change['short'].stated(*RESULTS)}."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (name, key, metric, i, x.mean, *x.interval)
        for name, m in measured.items()
        for key in m.arms
        for metric in (RIGHT, LENGTH)
        for i, x in m.series(key, metric)
    ]
    return [("part", "arm", "metric", "iteration", "mean", "low", "high"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    budget = measured["budget"]
    for i, key in enumerate(budget.arms):
        line(panels[0], budget.series(key, RIGHT), i, budget.arms[key].label, dashed=bool(i))
        line(panels[1], budget.series(key, LENGTH), i, budget.arms[key].label, dashed=bool(i))
    for axes, title in zip(panels, ("share of right answers", "length in tokens")):
        axes.set(title=title, xlabel="iteration")
        axes.set_ylim(bottom=0)
    panels[1].set_ylim(top=48)
    panels[1].legend(loc="upper left")


STUDY = Study(
    name="r1_zero",
    page="docs/studies/r1-zero.md",
    parts={"budget": BUDGET, "template": TEMPLATE, "long": LONG},
    metrics=(RIGHT, LENGTH, GREEDY, SAMPLED),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Share of right answers and length over iterations with the full and a short budget.",
    panels=2,
)
