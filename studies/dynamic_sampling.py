"""Dynamic sampling: draw again until every group has right and wrong answers. Does it pay? DAPO, arXiv:2503.14476.

Stated before the runs. A group whose answers are all right or all wrong has no advantage and no gradient. DAPO replaces
such groups by new ones. So at equal iterations the filter should help. But it generates more, so the same is compared
at equal generated tokens, counting the answers that were thrown away.

The base is DAPO without its length penalty on the packaged model and task, with small groups of four, in which many
groups agree. Compared, within a seed: sampled held-out accuracy with minus without dynamic sampling, after the last
iteration, and where the run with dynamic sampling has generated as many tokens as the other one in all its iterations.

Changed after the runs: at equal tokens the accuracy is linear between two evaluations, which are four iterations apart;
at first it was that of the earlier one. Added then: the same at equal CPU seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.certificates.studies import StudyRunResult
from studies.figures import COLOURS, line
from studies.study import LEAST_ACCURACY, Arm, Choice, Estimate, Exact, Measured, Study, cost, table

SAMPLED, GREEDY, DEAD = "eval/accuracy", "eval/accuracy_greedy", "frac_reward_zero_std"
LAST = 16
BASE = (f"iterations = {LAST}", "prompts = 32", "method.group_size = 4", "method.minibatches = 4",
        "evaluate.every = 4", "optimizer.lr = 3e-4", "optimizer.lr_scheduler = constant",
        'method.shaping = [{kind = "Correctness", correct_reward = 1.0, wrong_reward = -1.0}]')  # fmt: skip
OFF = ("method.filter = everything", "method.max_refills = 0")
ARMS = {
    "off": Arm(label="without", method="dapo", task="calculator", settings=(*BASE, *OFF)),
    "on": Arm(label="dynamic sampling", method="dapo", task="calculator", settings=BASE),
}


def tokens_within(run: StudyRunResult, other: StudyRunResult, matched_by: str) -> int:
    """The tokens that a run has generated when it has cost as much as all iterations of another one.

    The CPU seconds of a run are spread evenly over its tokens.
    """
    total = sum(run.tokens)
    shares = {
        "iterations": 1.0,
        "generated tokens": sum(other.tokens) / total,
        "CPU seconds": other.cpu_seconds / run.cpu_seconds,
    }
    return round(total * min(1.0, shares[matched_by]))


def accuracies(m: Measured, matched_by: str) -> dict[str, Estimate]:
    """The held-out accuracy of both arms at equal cost, linear between two evaluations of the run that costs more."""
    off, on = m.runs("off"), m.runs("on")
    pairs = list(zip(off, on, strict=True))
    return {
        "off": m.estimate((a.at_tokens(SAMPLED, tokens_within(a, b, matched_by)) for a, b in pairs), SAMPLED),
        "on": m.estimate((b.at_tokens(SAMPLED, tokens_within(b, a, matched_by)) for a, b in pairs), SAMPLED),
    }


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, rows, texts = measured["calculator"], [], []
    for matched_by in ("iterations", "generated tokens", "CPU seconds"):
        name, values = f"equal {matched_by}", accuracies(m, matched_by)
        gain = values["on"].minus(values["off"], LEAST_ACCURACY)
        rows.append((name, values["off"], values["on"], gain, len(m.seeds), gain.result("better", "worse")))
        texts.append(f"{gain.stated('better', 'worse')} at {name}")
    tokens = [Estimate(tuple(float(sum(run.tokens)) for run in m.runs(key))) for key in m.arms]
    dead = m.mean("off", DEAD, LAST - 7, LAST)
    head = ("compared at", "without", "with", "difference", "seeds", "result")
    return {
        "calculator": f"{table(head, rows)}\n\n"
        f"Without dynamic sampling {100 * dead.mean:.0f} % of the groups have no gradient in the last eight "
        f"iterations. "
        f"With it a run generates {tokens[1].mean / tokens[0].mean:.1f} times as many tokens.\n\n{cost(m)}",
        "dynamic_sampling": (f"It changes sampled held-out accuracy by {' and by '.join(texts)}."),
    }


def curve(run: StudyRunResult) -> list[tuple[int, int, float]]:
    """Iteration, tokens generated until then, and held-out accuracy, at each evaluation."""
    return [(i, sum(run.tokens[:i]), x) for i, x in sorted(run.metrics[SAMPLED].items())]


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    m = measured["calculator"]
    values = [
        (key, seed, *point)
        for key in m.arms
        for seed, run in zip(m.seeds, m.runs(key), strict=True)
        for point in curve(run)
    ]
    return [("arm", "seed", "iteration", "generated tokens", "held-out accuracy"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    m = measured["calculator"]
    for i, key in enumerate(m.arms):
        line(panels[0], m.series(key, SAMPLED), i, m.arms[key].label, dashed=not i)
        for j, run in enumerate(m.runs(key)):
            _, tokens, accuracy = zip(*curve(run))
            label = None if j else m.arms[key].label
            style = {"color": COLOURS[i], "linestyle": "-" if i else "--", "linewidth": 1.2, "label": label}
            panels[1].plot([n / 1000 for n in tokens], accuracy, **style)
    line(panels[2], m.series("off", DEAD), 0, "without", dashed=True)
    for axes, title, label in zip(
        panels,
        ("held-out accuracy", "the same, by tokens", "groups without gradient"),
        ("iteration", "thousands of generated tokens", "iteration"),
        strict=True,
    ):
        axes.set(title=title, xlabel=label, ylim=(0, 1))
    panels[0].legend(loc="lower right")


STUDY = Study(
    name="dynamic_sampling",
    page="docs/studies/dynamic-sampling.md",
    parts={"calculator": ARMS},
    metrics=(SAMPLED, GREEDY, DEAD),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Held-out accuracy with and without dynamic sampling over iterations and over generated tokens, and the share "
    "of groups without gradient.",
    panels=3,
    tuned={"calculator": Choice(SAMPLED, 1, ("evaluate.problems = 512",))},
)
