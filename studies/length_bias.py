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
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.advantages import centred
from groupwise.methods import Method, dr_grpo, grpo, gspo
from groupwise.objective import token_mean
from studies import two_numbers
from studies.figures import line
from studies.push import push
from studies.study import NO_KL, SEEDS, Arm, Estimate, Exact, Measured, Study, average, cost, table

WRONG, RIGHT = "completions/mean_length_wrong", "completions/mean_length_correct"
LAST = 5  # the iterations at the end that are compared
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


def objectives() -> dict[str, Method]:
    """The same four objectives, as values."""
    plain = grpo(group_size=16, kl=0.0)
    mean = replace(plain, objective=replace(plain.objective, aggregate=token_mean))
    no_std = replace(plain, advantage=(centred,))
    return {"grpo": plain, "no_std": no_std, "token_mean": mean, "dr_grpo": dr_grpo(group_size=16)}


def exact() -> Exact:
    """The push on wrong, right and all answers, and the lengths of the policy of two numbers for each seed."""
    methods = objectives()
    return {
        "push": {key: list(zip(*push(method))) for key, method in {**methods, "gspo": gspo()}.items()},
        "two_numbers": {key: [two_numbers.train(method, seed) for seed in SEEDS] for key, method in methods.items()},
    }


def gaps(m: Measured) -> dict[str, Estimate]:
    """The length of wrong minus right answers at the end, by arm."""
    return {key: wrong.minus(right) for key, (wrong, right) in ends(m).items()}


def ends(m: Measured) -> dict[str, tuple[Estimate, Estimate]]:
    """The length of wrong and of right answers at the end, by arm."""
    last = len(m.runs(next(iter(m.arms)))[0].tokens)
    return {
        key: (m.mean(key, WRONG, last - LAST + 1, last), m.mean(key, RIGHT, last - LAST + 1, last)) for key in m.arms
    }


def ends_exact(exact: Exact) -> dict[str, tuple[Estimate, Estimate]]:
    """The same for the policy of two numbers."""
    sides = {key: [[average(x[i] for x in run[-LAST:]) for run in runs] for i in (0, 1)]
             for key, runs in exact["two_numbers"].items()}  # fmt: skip
    return {key: (Estimate(tuple(wrong)), Estimate(tuple(right))) for key, (wrong, right) in sides.items()}


def lengths(values: Mapping[str, tuple[Estimate, Estimate]]) -> str:
    """The table of lengths at the end."""
    rows = []
    for key, (wrong, right) in values.items():
        result = "*longer when wrong*" if (gap := wrong.minus(right)).interval[0] > 0 else "*not shown*"
        rows.append((LABELS[key], wrong, right, gap, len(gap.values), result))
    return table(("objective", "wrong", "right", "wrong - right", "seeds", "result"), rows)


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    pushes = [(LABELS.get(key, "GSPO"), *(Estimate(tuple(x)) for x in sides)) for key, sides in exact["push"].items()]
    gap = {key: x.minus(y) for key, (x, y) in ends_exact(exact).items()}
    model = gaps(measured.get("long", measured["coin"]))
    return {
        "push": table(("objective", "wrong answers", "right answers", "all answers"), pushes),
        "two_numbers": lengths(ends_exact(exact)),
        **{part: f"{lengths(ends(m))}\n\n{cost(m)}" for part, m in measured.items()},
        "length_bias": (
            f"- [Length bias](docs/studies/length-bias.md): in the smallest policy with a length, wrong answers end "
            f"{gap['grpo'].brief} tokens longer than right ones with GRPO, {gap['dr_grpo'].brief} with Dr. GRPO; in "
            f"the language model {model['grpo'].brief} and {model['dr_grpo'].brief}."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    two = [("two_numbers", key, seed, i, *pair) for key, runs in exact["two_numbers"].items()
           for seed, run in zip(SEEDS, runs) for i, pair in enumerate(run, 1)]  # fmt: skip
    coin = [(part, key, seed, i, run.metrics[WRONG][i], run.metrics[RIGHT][i]) for part, m in measured.items()
            for key in m.arms for seed, run in zip(m.seeds, m.runs(key)) for i in run.metrics[WRONG]
            if i in run.metrics[RIGHT]]  # fmt: skip
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
    metrics=(WRONG, RIGHT, "completions/clipped_ratio", "outcome/correct"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Mean length of wrong and right answers over iterations, for four objectives. Above, a policy of two numbers: "
    "divided by length, wrong answers grow and right ones shrink; else both stay. Below, a language model on the coin.",
    panels=8,
    exact=exact,
    excerpts=("README.md",),
)
