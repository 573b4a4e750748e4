"""DAPO's ladder: naive GRPO, and each of DAPO's five techniques added in turn. DAPO, arXiv:2503.14476, table 1.

Stated before the runs. The paper's table (AIME 2024, avg@32, Qwen2.5-32B) rises at every rung: 30 with naive GRPO, 36
with overlong filtering, 38 with clip-higher, 41 with soft overlong punishment, 42 with the token mean, 50 with dynamic
sampling. Each rung keeps the techniques below it (our reading, for filtering and punishment, too).

The task is `wordy_sums` with a budget of 36 tokens. Its base says each step once to three times, and the budget cuts a
third of its answers, many of which would be right. So the techniques about overlong answers have something to do. All
rungs have 30 iterations with 16 prompts and groups of eight. The learning rate and the budget were chosen with naive
GRPO on seed 99, which is not among the seeds here: at 5e-4 it hardly learned, at 3e-4 it did.

Compared, within a seed: sampled held-out accuracy after training, each rung minus the one below, and all five
techniques minus naive GRPO. A rung shows its technique if the interval of its difference lies above 0. Beside it:
pass@8, length, the share of answers that the budget cuts, entropy over the last five iterations, and the tokens
generated, since dynamic sampling draws more answers in an iteration.

Naive GRPO and the last rung at equal tokens: studies/ladder_equal_tokens.py.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from studies import ladder_equal_tokens
from studies.figures import COLOURS
from studies.study import LEAST_ACCURACY, Arm, Choice, Estimate, Exact, Measured, Study, cost, table

SAMPLED, PASSES, LENGTH, CUT, ENTROPY = (
    "eval/accuracy", "eval/pass@8", "eval/mean_length", "eval/truncated", "entropy"
)  # fmt: skip
LAST = 30
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 8", "method.minibatches = 4",
        "optimizer.lr = 3e-4", "optimizer.lr_scheduler = constant", "sampling.max_tokens = 36",
        "evaluate.samples = 8")  # fmt: skip
REWARD = '{kind = "Correctness", correct_reward = 1.0, wrong_reward = -1.0}'
NAIVE = {
    "method.shaping": f"[{REWARD}]",
    "method.objective.surrogate.high": "0.2",
    "method.objective.aggregate": "sequence_mean",
    "method.filter": "everything",
    "method.max_refills": "0",
}
RUNGS = {
    "naive GRPO": NAIVE,
    "overlong filtering": {"method.mask": '["complete"]'},
    "clip-higher": {"method.objective.surrogate.high": "0.28"},
    "soft overlong punishment": {"method.shaping": f'[{REWARD}, {{kind = "OverlongPenalty", buffer_length = 0.2}}]'},
    "token mean": {"method.objective.aggregate": "token_mean"},
    "dynamic sampling": {"method.filter": "mixed_outcomes", "method.max_refills": "10"},
}
"""What each rung changes in the settings of the one below."""
RESULTS = ("better", "worse")
PAPER = (30, 36, 38, 41, 42, 50)


def arms() -> dict[str, Arm]:
    """The rungs: DAPO, with the techniques of the higher rungs undone."""
    changes = accumulate(RUNGS.values(), lambda below, own: {**below, **own})
    return {
        name: Arm(label=name if name == "naive GRPO" else f"+ {name}", method="dapo", task="wordy_sums",
                  settings=(*BASE, *(f"{path} = {value}" for path, value in settings.items())))
        for name, settings in zip(RUNGS, changes, strict=True)
    }  # fmt: skip


def after(m: Measured, rung: str, metric: str = SAMPLED) -> Estimate:
    """A metric of a rung at the end: held-out metrics after the last iteration, others over the last five."""
    return m.mean(rung, metric, LAST if metric.startswith("eval/") else LAST - 4, LAST)


def thousands(m: Measured, rung: str) -> float:
    """The generated tokens of a run in thousands, a mean over seeds."""
    return Estimate(tuple(sum(run.tokens) / 1000 for run in m.runs(rung))).mean


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, names = measured["rungs"], list(RUNGS)
    accuracy = {name: after(m, name) for name in names}
    rows = []
    for below, (name, paper) in zip((None, *names), zip(names, PAPER, strict=True)):
        step = accuracy[name].minus(accuracy[below], LEAST_ACCURACY) if below else ""
        others = [f"{after(m, name, metric).mean:.3g}" for metric in (PASSES, LENGTH, CUT, ENTROPY)]
        rows.append((m.arms[name].label, paper, accuracy[name], step, *others, f"{thousands(m, name):.0f}",
                     step.result(*RESULTS) if isinstance(step, Estimate) else ""))  # fmt: skip
    head = ("rung", "paper", "accuracy", "minus the rung below", "pass@8", "length", "cut", "entropy",
            "thousand tokens", "result")  # fmt: skip
    before = [m.mean("naive GRPO", metric, 0, 0).mean for metric in (SAMPLED, PASSES, LENGTH, CUT)]
    total, last = (accuracy[names[-1]].minus(accuracy[name], LEAST_ACCURACY) for name in (names[0], names[-2]))
    beyond = accuracy[names[-1]].minus(accuracy["clip-higher"])
    times = thousands(m, names[-1]) / thousands(m, names[0])
    own, equal = {}, ""
    if ends := measured.get("equal_tokens"):
        own["equal_tokens"] = ladder_equal_tokens.comparison(ends, *RESULTS)
        equal = f", at equal tokens, on other seeds, by {ladder_equal_tokens.gain(ends).stated(*RESULTS)}"
    return own | {
        "rungs": f"{table(head, rows)}\n\nBefore training: accuracy {before[0]:.3f}, pass@8 {before[1]:.3f}, length "
        f"{before[2]:.1f}, cut {before[3]:.3f}. All five techniques minus naive GRPO: {total} "
        f"({total.result(*RESULTS)}, {len(m.seeds)} seeds). They generate {times:.1f} times its tokens. Minus the "
        f"rungs up to clip-higher they change accuracy by {beyond.brief}.\n\n{cost(m)}",
        "ladder": (
            f"The paper climbs from 30 to 50; here all five techniques "
            f"together change held-out accuracy by {total.stated(*RESULTS)} at equal iterations{equal}; the last one, "
            f"dynamic sampling, by {last.stated(*RESULTS)} at equal iterations."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["rungs"]
    values = [
        (name, seed, metric, x)
        for name in m.arms
        for metric in (SAMPLED, PASSES, LENGTH, CUT, ENTROPY)
        for seed, x in zip(m.seeds, after(m, name, metric).values, strict=True)
    ]
    return [("rung", "seed", "metric", "value at the end"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m, at = measured["rungs"], range(len(RUNGS))
    for axes, metric, title in zip(panels, (SAMPLED, PASSES), ("held-out accuracy", "held-out pass@8"), strict=True):
        for j in range(len(m.seeds)):
            axes.plot([after(m, name, metric).values[j] for name in RUNGS], at, "o", color=COLOURS[4], markersize=3)
        axes.plot([after(m, name, metric).mean for name in RUNGS], at, "-D", color=COLOURS[1], linewidth=2)
        axes.invert_yaxis()
        axes.set(title=title, yticks=at, yticklabels=[arm.label for arm in m.arms.values()])
    panels[1].set_yticklabels([])


STUDY = Study(
    name="ladder",
    page="docs/studies/ladder.md",
    parts={"rungs": arms(), "equal_tokens": ladder_equal_tokens.ends(arms()["naive GRPO"], arms()["dynamic sampling"])},
    metrics=(SAMPLED, PASSES, LENGTH, CUT, ENTROPY),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Held-out accuracy and pass@8 of each rung of DAPO's ladder; a small point is a seed, the line is their mean.",
    panels=2,
    tuned={"rungs": Choice(SAMPLED, 1)},
    seeds={"equal_tokens": ladder_equal_tokens.SEEDS},
)
