"""Divisors: what a default of other trainers does to the token mean. DAPO, arXiv:2503.14476, equation 8.

Stated before the runs. The paper's token mean divides by the tokens of the whole step. A trainer that averages the
losses of microbatches, or of ranks, divides each by its own tokens instead, and one that divides by `1/max_tokens` by a
constant. So the same answers have another gradient, and another push on length, the smaller the microbatch. With one
answer per microbatch the token mean is GRPO's mean over answers.

Exact: for microbatches of some numbers of answers, the distance of the gradient to that of the whole step, relative to
its norm and after scaling to the same norm, since Adam ignores the scale; and the push on length (studies/push.py).

Trained: the coin (studies/length_bias.py) with microbatches of one group, `group_token_mean`, beside the arms of that
study. Compared, within a seed: the length of wrong minus right answers over the last five iterations. It should be
above 0 with one answer per microbatch, and nearer to 0 with one group.

Added after these runs, and before its own: the same comparison in the part `long`, at the setting in which the bias of
GRPO shows (160 iterations, a fifth of the rate). There the arms that length_bias has are known already; microbatches of
one group are new. By the exact push they should show far less than one answer, if anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from groupwise.data import Batch
from groupwise.methods import Method, grpo
from groupwise.objective import budget_mean, token_mean
from studies.figures import COLOURS
from studies.length_bias import COIN, LONG, LONGER, RESULTS, arm
from studies.length_bias import STUDY as LENGTH_BIAS
from studies.lengths import gaps
from studies.push import BATCHES, GROUP, GROUPS, gradients, push
from studies.study import Arm, Estimate, Exact, Measured, Study, cost, table

SIZES = {256: "whole step", 128: "2 ranks", 32: "2 groups", 16: "1 group", 4: "4 answers", 1: "1 answer"}


def peer(coin: Mapping[str, Arm]) -> dict[str, Arm]:
    """The arms of the study of length bias under the names of the divisors that they have."""
    return {
        "token_mean": coin["token_mean"],
        "answer": replace(coin["grpo"], label="microbatches of one answer"),
        "budget": replace(coin["dr_grpo"], label="1/max_tokens (Dr. GRPO, without std)"),
    }


def group(*settings: str) -> Arm:
    """Microbatches of one group."""
    return arm("microbatches of one group", "grpo", *settings, "method.objective.aggregate = group_token_mean")


@dataclass(frozen=True, slots=True)
class MicrobatchMean:
    """The mean over microbatches of the mean over their tokens, as in a trainer that averages losses."""

    answers: int

    def __call__(self, step: Batch) -> torch.Tensor:
        piece = step.sequences.index // self.answers
        tokens = torch.bincount(piece).to(step.advantage.dtype)
        return 1 / (tokens[piece] * len(tokens))


def with_aggregate(aggregate: Any) -> Method:
    """GRPO without KL, with another aggregate."""
    plain = grpo(group_size=GROUP, kl=0.0)
    return replace(plain, objective=replace(plain.objective, aggregate=aggregate))


def exact() -> Exact:
    """By divisor: the relative distance of the gradient to the token mean's, and the push on wrong answers."""
    assert max(SIZES) == GROUPS * GROUP
    named = {f"microbatches: {name}": MicrobatchMean(n) for n, name in SIZES.items()} | {"1/max_tokens": budget_mean}
    whole = gradients(with_aggregate(token_mean))
    found: Exact = {}
    for name, aggregate in named.items():
        method = with_aggregate(aggregate)
        pairs = zip(gradients(method), whole, strict=True)
        distances = [round(float((a / a.norm() - b / b.norm()).norm()), 9) for a, b in pairs]
        found[name] = {"distance": distances, "wrong": [wrong for wrong, _, _ in push(method, BATCHES)]}
    return found


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    computed = [(name, Estimate(tuple(x["distance"])), Estimate(tuple(x["wrong"]))) for name, x in exact.items()]
    distance = Estimate(tuple(exact["microbatches: 1 group"]["distance"]))
    return {
        "exact": table(("divisor", "distance of the gradient", "push on wrong answers"), computed),
        **{name: trained(m) for name, m in measured.items()},
        "divisors": "The token mean over microbatches of one group has a "
        f"gradient {distance.brief} of its norm away from that over the whole step{by_length(measured)}.",
    }


def by_length(measured: Mapping[str, Measured]) -> str:
    """What training shows where GRPO is biased. With one answer, lengths end at limits: an interval means little."""
    if "long" not in measured:
        return ""
    gap = gaps(measured["long"])
    answer = f"{gap['answer'].mean:.0f} with one answer ({gap['answer'].verdict}; the lengths end at their limits)"
    return f"; trained, wrong answers are {gap['group'].stated()} tokens longer than right ones with it, {answer}"


def trained(m: Measured) -> str:
    """The table of a part that was trained."""
    rows = [
        (one.label, gap, len(m.seeds), gap.result(*RESULTS))
        for one, gap in zip(m.arms.values(), gaps(m).values(), strict=True)
    ]
    return f"{table(('divisor', 'wrong - right', 'seeds', 'result'), rows)}\n\n{cost(m)}"


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [(name, i, *pair) for name, x in exact.items() for i, pair in enumerate(zip(x["distance"], x["wrong"]))]
    return [("divisor", "batch", "distance of the gradient", "push on wrong answers"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    names = [name.removeprefix("microbatches: ") for name in exact]
    for axes, key, title in zip(panels, ("distance", "wrong"), ("distance of the gradient", "push on wrong answers")):
        estimates = [Estimate(tuple(x[key])) for x in exact.values()]
        axes.barh(names, [x.mean for x in estimates], color=COLOURS[1], height=0.6)
        axes.set(title=title)
        axes.set_axisbelow(True)
        axes.invert_yaxis()


STUDY = Study(
    name="divisors",
    page="docs/studies/divisors.md",
    parts={
        "coin": peer(COIN),
        "group": {"token_mean": COIN["token_mean"], "group": group()},
        "long": {**peer(LONG), "group": group(*LONGER)},
    },
    metrics=LENGTH_BIAS.metrics,
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Distance of the gradient to the token mean's and push on the length of wrong answers, by divisor.",
    panels=2,
    exact=exact,
)
