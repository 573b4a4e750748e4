"""Length bias: does the division by an answer's length make wrong answers longer? Dr. GRPO, arXiv:2503.20783.

Stated before the runs. The coin's reward depends on a guess that no policy can improve, so the only thing that training
can change is how long the model talks after it has read `right` or `wrong`. The paper explains the bias by the factor
1/|o|: the tokens of a long wrong answer are pushed down less than those of a short one. So wrong answers should grow
with GRPO, with or without the division by the std, and should not with Dr. GRPO, nor with DAPO's token mean.

Compared: the mean length of wrong minus right answers over the last five iterations, within a seed. An arm shows the
bias if its 95 % interval over seeds lies above 0. One minibatch, so that no ratio is clipped. The learning rate and the
number of iterations were chosen with GRPO on seed 99, which is not among the seeds here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.methods import Method, dr_grpo, grpo, gspo
from groupwise.objective import token_mean
from studies.figures import line
from studies.push import push
from studies.study import NO_KL, Arm, Estimate, Exact, Measured, Study, cost, table

WRONG, RIGHT = "completions/mean_length_wrong", "completions/mean_length_correct"
CUT = "completions/clipped_ratio"
LAST = 25
BASE = (f"iterations = {LAST}", "prompts = 16", "method.group_size = 16", "method.minibatches = 1",
        "evaluate.problems = 16", NO_KL)  # fmt: skip
CENTRED = 'method.advantage = ["centred"]'
TOKEN_MEAN = "method.objective.aggregate = token_mean"


def arm(label: str, method: str, *settings: str) -> Arm:
    """An arm on the coin."""
    return Arm(label=label, method=method, task="coin", settings=(*BASE, *settings))


COIN = {
    "grpo": arm("GRPO: 1/length and std", "grpo"),
    "no_std": arm("1/length, without std", "grpo", CENTRED),
    "token_mean": arm("token mean, with std", "grpo", TOKEN_MEAN),
    "dr_grpo": arm("Dr. GRPO: neither", "dr_grpo"),
}


def pushed() -> dict[str, Method]:
    """The methods of the exact part."""
    plain = grpo(group_size=16, kl=0.0)
    mean = replace(plain, objective=replace(plain.objective, aggregate=token_mean))
    return {"GRPO": plain, "GSPO": gspo(), "token mean": mean, "Dr. GRPO": dr_grpo(group_size=16)}


def exact() -> Exact:
    """The push on wrong, right and all answers, by method."""
    return {name: list(zip(*push(method), strict=True)) for name, method in pushed().items()}


def gaps(m: Measured) -> dict[str, Estimate]:
    """The length of wrong minus right answers at the end, by arm."""
    return {key: m.mean(key, WRONG, LAST - 4, LAST).minus(m.mean(key, RIGHT, LAST - 4, LAST)) for key in m.arms}


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    coin = measured["coin"]
    ends = {key: [coin.mean(key, metric, LAST - 4, LAST) for metric in (WRONG, RIGHT)] for key in coin.arms}
    firsts = {key: [coin.mean(key, metric, 1, 1) for metric in (WRONG, RIGHT)] for key in coin.arms}
    gap = gaps(coin)
    shown = {True: "*longer when wrong*", False: "*no difference shown*"}
    rows = [
        (arm.label, *(f"{x.mean:.1f}" for x in firsts[key]), *ends[key], gap[key], len(coin.seeds),
         shown[gap[key].interval[0] > 0])
        for key, arm in coin.arms.items()
    ]  # fmt: skip
    head = ("objective", "wrong, first", "right, first", "wrong, last five", "right, last five", "wrong - right",
            "seeds", "result")  # fmt: skip
    pushes = [(name, *(Estimate(tuple(values)) for values in sides)) for name, sides in exact.items()]
    one = gap["grpo"]
    return {
        "push": table(("objective", "wrong answers", "right answers", "all answers"), pushes),
        "coin": f"{table(head, rows)}\n\n{cost(coin)}",
        "length_bias": (
            f"- [Length bias](docs/studies/length-bias.md): with GRPO wrong answers end {one.brief} tokens longer than "
            f"right ones; with Dr. GRPO {gap['dr_grpo'].brief}."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    coin = measured["coin"]
    values = [
        (key, name, i, x.mean, *x.interval)
        for key in coin.arms
        for name, metric in (("wrong", WRONG), ("right", RIGHT))
        for i, x in coin.series(key, metric)
    ]
    return [("objective", "answers", "iteration", "mean length", "low", "high"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    coin = measured["coin"]
    for axes, (key, one) in zip(panels, coin.arms.items(), strict=True):
        line(axes, coin.series(key, WRONG), 0, "wrong")
        line(axes, coin.series(key, RIGHT), 1, "right", dashed=True)
        axes.set(title=one.label, xlabel="iteration", ylim=(0, 66))
    panels[0].set_ylabel("mean length in tokens")
    panels[0].legend(loc="upper left")


STUDY = Study(
    name="length_bias",
    page="docs/studies/length-bias.md",
    parts={"coin": COIN},
    metrics=(WRONG, RIGHT, CUT, "outcome/correct"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Mean length of wrong and of right answers over iterations, for four objectives: with the division by length "
    "wrong answers grow to the limit of 64 tokens and right ones shrink; without it both stay together.",
    panels=4,
    exact=exact,
    excerpts=("README.md",),
)
