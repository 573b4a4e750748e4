"""Dynamic sampling: draw again until every group has right and wrong answers. Does it pay? DAPO, arXiv:2503.14476.

Stated before the runs. A group whose answers are all right or all wrong has no advantage and no gradient. DAPO replaces
such groups by new ones. So at equal iterations the filter should help. But it generates more, so the same is compared
at equal generated tokens, counting the answers that were thrown away.

The base is DAPO without its length penalty on the packaged model and task, with small groups of four, in which many
groups agree. Compared, within a seed: sampled held-out accuracy with minus without dynamic sampling, after the last
iteration, and where the run with dynamic sampling has generated as many tokens as the other one in all its iterations.

Changed after the runs: at equal tokens the accuracy is linear between two evaluations, which are four iterations apart;
at first it was that of the earlier one. Added then: the same at equal CPU seconds. Corrected: the seconds are those of
training. At first those of the evaluations counted, too, which are as many with both arms and half of a run, so that
dynamic sampling looked cheap. The part `seconds` makes the runs of the first look again, without evaluations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.certificates.effect_plans import FIRST_SEED, merged
from groupwise.certificates.studies import StudyRunResult
from groupwise.evaluation.seed_verdicts import LOOKS
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

UNWATCHED = ("optimizer.lr = 1e-4", "evaluate.every = 0", "evaluate.problems = 1")
"""The best rate of both arms, and next to no evaluation."""
SECONDS = {key: replace(arm, settings=merged(arm.settings, UNWATCHED)) for key, arm in ARMS.items()}


def seconds_per_token(m: Measured) -> dict[str, list[float]]:
    """The CPU seconds of a run for each generated token, by arm and in the order of the seeds."""
    return {key: [run.cpu_seconds / sum(run.tokens) for run in m.runs(key)] for key in m.arms}


def accuracies(m: Measured, matched_by: str, seconds: Mapping[str, list[float]] | None = None) -> dict[str, Estimate]:
    """The held-out accuracy of both arms at equal cost, linear between two evaluations of the run that costs more.

    `seconds` are those of a generated token, by arm and seed; without them each token costs the same.
    """
    if matched_by == "iterations":
        return {key: m.mean(key, SAMPLED, LAST, LAST) for key in m.arms}

    by_token = seconds or {key: [1.0] * len(m.seeds) for key in m.arms}

    def at_equal_cost(key: str, other: str) -> Estimate:
        ratios = (theirs / own for own, theirs in zip(by_token[key], by_token[other], strict=True))
        runs = zip(m.runs(key), m.runs(other), ratios, strict=True)
        within = ((run, min(sum(run.tokens), round(ratio * sum(matched.tokens)))) for run, matched, ratio in runs)
        return m.estimate((run.at_tokens(SAMPLED, tokens) for run, tokens in within), SAMPLED)

    return {"off": at_equal_cost("off", "on"), "on": at_equal_cost("on", "off")}


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m, rows, texts = measured["calculator"], [], []
    compared = {name: accuracies(m, name) for name in ("iterations", "generated tokens")}
    if (costs := measured.get("seconds")) and costs.seeds == m.seeds:
        compared["CPU seconds of training"] = accuracies(m, "CPU seconds", seconds_per_token(costs))
    for matched_by, values in compared.items():
        gain = values["on"].minus(values["off"], LEAST_ACCURACY)
        rows.append((f"equal {matched_by}", *values.values(), gain, len(m.seeds), gain.result("better", "worse")))
        texts.append(f"{gain.stated('better', 'worse')} at equal {matched_by}")
    tokens = {key: sum(sum(run.tokens) for run in m.runs(key)) for key in m.arms}
    dead = m.mean("off", DEAD, LAST - 7, LAST)
    head = ("compared at", "without", "with", "difference", "seeds", "result")
    return ({"seconds": seconds_table(costs)} if costs else {}) | {
        "calculator": f"{table(head, rows)}\n\n"
        f"Without dynamic sampling {100 * dead.mean:.0f} % of the groups have no gradient in the last eight "
        f"iterations. With it a run generates {tokens['on'] / tokens['off']:.1f} times as many tokens.\n\n{cost(m)}",
        "dynamic_sampling": f"It changes sampled held-out accuracy by {', by '.join(texts[:-1])} and by {texts[-1]}.",
    }


def seconds_table(m: Measured) -> str:
    """What a generated token costs in training, by arm."""
    rows = [
        (m.arms[key].label, " / ".join(f"{run.cpu_seconds:.1f}" for run in m.runs(key)),
         " / ".join(f"{1e6 * x:.0f}" for x in by_token))
        for key, by_token in seconds_per_token(m).items()
    ]  # fmt: skip
    head = ("arm", "CPU seconds of a run, by seed", "microseconds of a token")
    return f"{table(head, rows)}\n\n{cost(m)}"


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
    parts={"calculator": ARMS, "seconds": SECONDS},
    metrics=(SAMPLED, GREEDY, DEAD),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Held-out accuracy with and without dynamic sampling over iterations and over generated tokens, and the share "
    "of groups without gradient.",
    panels=3,
    tuned={"calculator": Choice(SAMPLED, 1, ("evaluate.problems = 512",))},
    seeds={"seconds": range(FIRST_SEED, FIRST_SEED + LOOKS[0])},
)
