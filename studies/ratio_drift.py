"""Do the ratios of sequences spread less than those of tokens, in the same run? GSPO, arXiv:2507.18071, section 4.

Stated before the runs. The paper's reason for the ratio of a sequence: the noise of token ratios adds up over a long
answer, and the mean of their logarithms averages it. Other studies here compare the two ratios between runs of two
methods (studies/engine_logprobs.py). Here both are measured in the same optimizer steps (studies/ratio_spreads.py): the
standard deviation of the log-ratios of tokens, and that of their means over an answer. If the log-ratios in an answer
were independent, the second would be smaller by about the root of the length. GRPO and GSPO with the bounds of their
papers, the packaged model, four minibatches, a learning rate of 1e-4, 20 iterations.

Compared, within a seed: the spread of the means relative to that of the tokens, each as its mean over all iterations.
The noise is *averaged out* if the interval lies below 1, and *as if independent* if it also does not lie above the same
number for independent log-ratios. Over time: the logarithm of the growth of each spread from the first five iterations
to the last five; the ratios *drift* if its interval lies above 0.

GRPO with seed 0 was looked at before this was written, so the direction is no prediction there: its means spread about
as much as its tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any

from studies.figures import line
from studies.gspo_regimes import ARMS, LAST
from studies.study import Arm, Estimate, Exact, Measured, Study, cost, table

TOKENS, MEANS, INDEPENDENT = (f"method/Spreads/{name}" for name in ("token", "sequence", "independent"))
LABELS = {TOKENS: "tokens", MEANS: "means of answers", INDEPENDENT: "means, if independent"}
FIRST_FIVE, LAST_FIVE = (1, 5), (LAST - 4, LAST)


def watched(arm: Arm) -> Arm:
    """The arm with the part that notes the spreads."""
    return replace(arm, settings=(*arm.settings, 'method.mask = ["ratio_spreads:Spreads"]'))


DENSE = {method: watched(ARMS[f"{method} base"]) for method in ("grpo", "gspo")}


def relative(m: Measured, arm: str, spread: str) -> Estimate:
    """A spread relative to that of the tokens."""
    pairs = zip(m.mean(arm, spread, 1, LAST).values, m.mean(arm, TOKENS, 1, LAST).values, strict=True)
    return Estimate(tuple(x / tokens for x, tokens in pairs))


def growth(m: Measured, arm: str, spread: str) -> Estimate:
    """The logarithm of a spread in the last five iterations, relative to the first five."""
    pairs = zip(m.mean(arm, spread, *LAST_FIVE).values, m.mean(arm, spread, *FIRST_FIVE).values, strict=True)
    return Estimate(tuple(log(last / first) for last, first in pairs))


def verdict(m: Measured, arm: str) -> str:
    """How far the means average out the noise of the tokens."""
    means = relative(m, arm, MEANS)
    if means.interval[1] >= 1:
        return "*not averaged out*"
    above = means.minus(relative(m, arm, INDEPENDENT)).interval[0] > 0
    return "*averaged out*, less than if independent" if above else "*as if independent*"


def spreads(m: Measured) -> str:
    """The table of the spreads, and that of their growth."""
    rows, grown = [], []
    for key, arm in m.arms.items():
        pair = (relative(m, key, spread) for spread in (MEANS, INDEPENDENT))
        rows.append((arm.label, m.mean(key, TOKENS, 1, LAST), *pair, len(m.seeds), verdict(m, key)))
        tokens, means = growth(m, key, TOKENS), growth(m, key, MEANS)
        grown.append((arm.label, tokens, means, means.minus(tokens), "*drift*" if means.interval[0] > 0 else "*none*"))
    head = ("method", "spread of tokens", "means / tokens", "if independent", "seeds", "result")
    growths = ("method", "growth of tokens' spread", "of means' spread", "difference", "drift of sequence ratios")
    return f"{table(head, rows)}\n\n{table(growths, grown)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["dense"]
    grpo, gspo = (relative(m, key, MEANS).brief for key in DENSE)
    independent = relative(m, "grpo", INDEPENDENT).brief
    return {
        **{part: spreads(own) for part, own in measured.items()},
        "ratio_drift": (
            f"In the same steps the mean log-ratios of "
            f"answers spread {grpo} times as far as those of tokens with GRPO, {gspo} with GSPO; independent ones, "
            f"{independent} times."
        ),
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (part, key, seed, label, i, x)
        for part, m in measured.items()
        for key in m.arms
        for seed, run in zip(m.seeds, m.runs(key), strict=True)
        for spread, label in LABELS.items()
        for i, x in run.metrics[spread].items()
    ]
    return [("part", "method", "seed", "spread of", "iteration", "value"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["dense"]
    for axes, (key, arm) in zip(panels, m.arms.items(), strict=True):
        for i, (spread, label) in enumerate(LABELS.items()):
            line(axes, m.series(key, spread), i, label, dashed=spread == INDEPENDENT)
        axes.set(title=arm.label, xlabel="iteration", yscale="log", ylim=(1e-3, 0.3))
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
    "means if log-ratios were independent, in the same runs of GRPO and of GSPO.",
    panels=2,
    use=("studies/ratio_spreads.py",),
)
