"""Length bias: does the division by an answer's length make wrong answers longer? Dr. GRPO, arXiv:2503.20783.

Stated before the runs. The coin's reward depends on a guess that no policy can improve, so the only thing that training
can change is how long the model talks after it has read `right` or `wrong`. The paper explains the bias by the factor
1/|o|: the tokens of a long wrong answer are pushed down less than those of a short one. So wrong answers should grow
with GRPO, with or without the division by the std, and should not with Dr. GRPO, nor with DAPO's token mean.

Compared: the mean length of wrong minus right answers over the last five iterations, within a seed. An arm shows the
bias if its 95 % interval over seeds lies above 0. One minibatch, so that no ratio is clipped. The learning rate and the
number of iterations were chosen with GRPO on seed 99, which is not among the seeds here.

Added after the first runs on the coin, in which the length of all answers drifted as much as the bias: the same
comparison with the policy of studies/two_numbers.py, and the part `long` with a fifth of the learning rate.

Added after all runs, since the lengths of `long` end at the limits of 64 and of 9 tokens, so that their interval has no
width: the share of answers that are cut off, and the first iteration with wrong answers over ten tokens longer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.methods import gspo
from studies import two_numbers
from studies.figures import line
from studies.lengths import APART, CUT, LAST, RIGHT, WRONG, curves, ends, gaps, until_apart
from studies.push import push
from studies.study import LEAST_TOKENS, NO_KL, SEEDS, Arm, Estimate, Exact, Measured, Study, average, cost, table

RESULTS = ("longer when wrong", "shorter when wrong")
UNTIL = f"iterations until {APART} apart"
LABELS = {"grpo": "GRPO: 1/length and std", "no_std": "1/length, without std", "token_mean": "token mean, with std",
          "dr_grpo": "Dr. GRPO: neither"}  # fmt: skip
OWN = {"grpo": (), "no_std": ('method.advantage = ["centred"]',), "dr_grpo": (),
       "token_mean": ("method.objective.aggregate = token_mean",)}  # fmt: skip
BASE = ("iterations = 25", "prompts = 16", "method.group_size = 16", "method.minibatches = 1",
        "evaluate.problems = 16", NO_KL)  # fmt: skip


def arm(label: str, method: str, *settings: str) -> Arm:
    """An arm on the coin."""
    return Arm(label=label, method=method, task="coin", settings=(*BASE, *settings))


def arms(*settings: str) -> dict[str, Arm]:
    """The four objectives on the coin."""
    return {key: arm(label, key if key == "dr_grpo" else "grpo", *settings, *OWN[key]) for key, label in LABELS.items()}


LONGER = "iterations = 160", "optimizer.lr = 2e-4"
COIN, LONG = arms(), arms(*LONGER)


def exact() -> Exact:
    """The push on wrong, right and all answers, and the lengths of the policy of two numbers for each seed."""
    methods = two_numbers.objectives()
    return {
        "push": {key: list(zip(*push(method))) for key, method in {**methods, "gspo": gspo()}.items()},
        "two_numbers": {key: [two_numbers.train(method, seed) for seed in SEEDS] for key, method in methods.items()},
    }


def ends_exact(exact: Exact) -> dict[str, tuple[Estimate, Estimate]]:
    """The same for the policy of two numbers."""
    sides = {key: [[average(x[i] for x in run[-LAST:]) for run in runs] for i in (0, 1)]
             for key, runs in exact["two_numbers"].items()}  # fmt: skip
    return {key: (Estimate(tuple(wrong)), Estimate(tuple(right))) for key, (wrong, right) in sides.items()}


def lengths(sides: Mapping[str, tuple[Estimate, Estimate]], beside: Mapping[str, tuple[str, ...]], *more: str) -> str:
    """The table of lengths at the end, with further columns."""
    rows = []
    for key, (wrong, right) in sides.items():
        gap = wrong.minus(right, LEAST_TOKENS)
        rows.append((LABELS[key], wrong, right, gap, *beside[key], len(gap.values), gap.result(*RESULTS)))
    return table(("objective", "wrong", "right", "wrong - right", *more, "seeds", "result"), rows)


def model(m: Measured) -> str:
    """The table of a part."""
    last = len(m.runs("grpo")[0].tokens)
    beside = {
        key: (f"{m.mean(key, CUT, last - LAST + 1, last).mean:.0%}", until_apart(curves(m, key))) for key in m.arms
    }
    return f"{lengths(ends(m), beside, 'cut off', UNTIL)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    pushes = [(LABELS.get(key, "GSPO"), *(Estimate(tuple(x)) for x in sides)) for key, sides in exact["push"].items()]
    runs = {key: [dict(enumerate(run, 1)) for run in of_seeds] for key, of_seeds in exact["two_numbers"].items()}
    small = {key: x.minus(y, LEAST_TOKENS) for key, (x, y) in ends_exact(exact).items()}
    beside = {key: (until_apart(of_seeds),) for key, of_seeds in runs.items()}
    return {
        "push": table(("objective", "wrong answers", "right answers", "all answers"), pushes),
        "two_numbers": lengths(ends_exact(exact), beside, UNTIL),
        **{part: model(m) for part, m in measured.items()},
        "length_bias": f"In the smallest policy with a length, wrong "
        f"answers end {small['grpo'].stated()} tokens longer than right ones with GRPO, "
        f"{small['dr_grpo'].stated()} with Dr. GRPO."
        + (in_words(measured["long"], measured["coin"]) if "long" in measured else ""),
    }


def in_words(m: Measured, first: Measured) -> str:
    """The lengths of the language model, whose intervals mean little at the limits."""
    wrong, right = (f"{min(x.values):.0f} to {max(x.values):.0f}" for x in ends(m)["grpo"])
    return (
        f" In a language model GRPO's wrong answers end at {wrong} of at most 64 tokens and right ones at {right} in "
        f"all {len(m.seeds)} seeds, and Dr. GRPO's differ by {gaps(m)['dr_grpo'].stated()}; in a first "
        f"setting, of 25 iterations, GRPO's differ by {gaps(first)['grpo'].stated()}."
    )


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    two = [("two_numbers", key, seed, i, *pair) for key, runs in exact["two_numbers"].items()
           for seed, run in zip(SEEDS, runs) for i, pair in enumerate(run, 1)]  # fmt: skip
    coin = [(part, key, seed, i, *pair) for part, m in measured.items() for key in m.arms
            for seed, run in zip(m.seeds, curves(m, key)) for i, pair in run.items()]  # fmt: skip
    return [("part", "objective", "seed", "iteration", "wrong", "right"), *two, *coin]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    model = measured.get("long", measured["coin"])
    for axes, below, (key, runs) in zip(panels[:4], panels[4:], exact["two_numbers"].items(), strict=True):
        for side, name in enumerate(("wrong", "right")):
            at_all = [(i, Estimate(tuple(x[side] for x in pairs))) for i, pairs in enumerate(zip(*runs), 1)]
            line(axes, at_all, side, name, dashed=bool(side))
            line(below, model.series(key, (WRONG, RIGHT)[side]), side, name, dashed=bool(side))
        axes.set(title=LABELS[key], ylim=(0, 66))
        below.set(xlabel="iteration", ylim=(0, 66))
    for first, name in ((panels[0], "two numbers"), (panels[4], "language model")):
        first.set_ylabel(f"{name}: tokens")
    panels[0].legend(loc="upper left")


STUDY = Study(
    name="length_bias",
    page="docs/studies/length-bias.md",
    parts={"coin": COIN, "long": LONG},
    metrics=(WRONG, RIGHT, CUT, "outcome/correct"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Mean length of wrong and right answers over iterations, for four objectives. Above, a policy of two numbers: "
    "divided by length, wrong answers grow and right ones shrink; else both stay. Below, a language model on the coin.",
    panels=8,
    exact=exact,
)
