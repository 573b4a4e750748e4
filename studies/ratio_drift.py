"""Do the ratios of sequences spread less than those of tokens, in the same run? GSPO, arXiv:2507.18071, section 4.

Stated before the runs. The paper's reason for the ratio of a sequence: the noise of token ratios adds up over a long
answer, and the mean of their logarithms averages it. Other studies here compare the two ratios between runs of two
methods (studies/engine_logprobs.py). Here both are measured in the same optimizer steps (studies/ratio_spreads.py).
GRPO and GSPO with the bounds of their papers, the packaged model, four minibatches, a learning rate of 1e-4, 20
iterations. Over time: the logarithm of the growth of each spread from the first five iterations to the last five; the
ratios *drift* if its interval lies above 0.

Changed after the runs, and stated before those of the figures that are compared now. At first it was the standard
deviation of the means, relative to that of the tokens, and an answer counted once: short answers decided. If an answer
counts with its tokens, its means spread less than tokens whatever the numbers are, so nothing could refute the claim.

Compared, within a seed: the share of the tokens' variance that is *common* to the tokens of an answer, over all
iterations, (between - dealt) / (variance - dealt). Between is the variance of the answers' means, in which an answer
counts with its tokens; dealt is what it would be if the tokens were dealt at random among the answers. The share is 0
if the log-ratios in an answer are independent: its mean averages all of their noise. It is 1 if an answer moves as one:
the mean of the longest answer averages nothing. The claim is that the mean averages the noise: *mostly averaged* if the
interval lies below a half, *mostly common* if above; a distance below 0.1 does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log, sqrt
from typing import Any

from studies.figures import line
from studies.gspo_regimes import ARMS, LAST
from studies.study import Arm, Estimate, Exact, Measured, Study, cost, table

TOKENS, VARIANCE, MEANS, DEALT = (f"method/Spreads/{name}" for name in ("token", "variance", "between", "dealt"))
LABELS = {VARIANCE: "tokens", MEANS: "means of answers", DEALT: "means, tokens dealt"}
FIRST_FIVE, LAST_FIVE = (1, 5), (LAST - 4, LAST)
HALF, LEAST = 0.5, 0.1
"""The share of the variance that the claim says is more than what is common, and the smallest distance that counts."""


def watched(arm: Arm) -> Arm:
    """The arm with the part that notes the spreads."""
    return replace(arm, settings=(*arm.settings, 'method.mask = ["ratio_spreads:Spreads"]'))


DENSE = {method: watched(ARMS[f"{method} base"]) for method in ("grpo", "gspo")}


def spread(m: Measured, arm: str, variance: str, first: int = 1, last: int = LAST) -> Estimate:
    """The standard deviation over some iterations, of their mean variance."""
    return m.estimate(map(sqrt, m.mean(arm, variance, first, last).values))


def relative(m: Measured, arm: str, variance: str) -> Estimate:
    """A spread relative to that of the tokens."""
    pairs = zip(spread(m, arm, variance).values, spread(m, arm, VARIANCE).values, strict=True)
    return m.estimate(x / tokens for x, tokens in pairs)


def common(m: Measured, arm: str) -> Estimate:
    """The share of the tokens' variance that is common to the tokens of an answer."""
    means, dealt, tokens = (m.mean(arm, variance, 1, LAST).values for variance in (MEANS, DEALT, VARIANCE))
    shares = ((x - by_chance) / (whole - by_chance) for x, by_chance, whole in zip(means, dealt, tokens, strict=True))
    return replace(m.estimate(shares), least=LEAST)


def growth(m: Measured, arm: str, variance: str) -> Estimate:
    """The logarithm of a spread in the last five iterations, relative to the first five."""
    pairs = zip(spread(m, arm, variance, *LAST_FIVE).values, spread(m, arm, variance, *FIRST_FIVE).values, strict=True)
    return m.estimate(log(last / first) for last, first in pairs)


def spreads(m: Measured) -> str:
    """The table of the spreads, and that of their growth."""
    rows, grown = [], []
    for key, arm in m.arms.items():
        share = common(m, key)
        result = share.claimed(-1, HALF).result("mostly averaged", "mostly common")
        pair = (f"{relative(m, key, variance).mean:.2f}" for variance in (MEANS, DEALT))
        rows.append((arm.label, spread(m, key, VARIANCE), *pair, share, len(m.seeds), result))
        tokens, means = growth(m, key, VARIANCE), growth(m, key, MEANS)
        grown.append((arm.label, tokens, means, means.minus(tokens), "*drift*" if means.interval[0] > 0 else "*none*"))
    head = ("method", "spread of tokens", "means / tokens", "if dealt", "common to an answer", "seeds", "result")
    growths = ("method", "growth of tokens' spread", "of means' spread", "difference", "drift of sequence ratios")
    return f"{table(head, rows)}\n\n{table(growths, grown)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["dense"]
    grpo, gspo = (common(m, key).brief for key in DENSE)
    return {
        **{part: spreads(own) for part, own in measured.items()},
        "ratio_drift": f"Of the variance of the tokens' log-ratios a share of {grpo} is common to the tokens of an "
        f"answer with GRPO, {gspo} with GSPO; its mean averages out the rest, the more the longer the answer is.",
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (part, key, seed, label, i, sqrt(x))
        for part, m in measured.items()
        for key in m.arms
        for seed, run in zip(m.seeds, m.runs(key), strict=True)
        for variance, label in LABELS.items()
        for i, x in run.metrics[variance].items()
    ]
    return [("part", "method", "seed", "spread of", "iteration", "value"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["dense"]
    for axes, (key, arm) in zip(panels, m.arms.items(), strict=True):
        for i, (variance, label) in enumerate(LABELS.items()):
            spreads = [(at, Estimate(tuple(map(sqrt, x.values)))) for at, x in m.series(key, variance)]
            line(axes, spreads, i, label, dashed=variance == DEALT)
        axes.set(title=arm.label, xlabel="iteration", yscale="log", ylim=(1e-3, 1))
    panels[0].set_ylabel("spread of log-ratios")
    panels[0].legend(loc="upper right")


STUDY = Study(
    name="ratio_drift",
    page="docs/studies/ratio-drift.md",
    parts={"dense": DENSE},
    metrics=(*LABELS, "outcome/correct"),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Standard deviation over iterations of the log-ratios of tokens, of their means over an answer, and of such "
    "means if the tokens were dealt at random among the answers, in the same runs of GRPO and of GSPO.",
    panels=2,
    use=("studies/ratio_spreads.py",),
)
