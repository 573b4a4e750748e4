"""Old log-probs from the engine: does GSPO tolerate a disturbed engine better than GRPO? arXiv:2507.18071, section 5.4.

Stated before the runs. A trainer recomputes the old log-probs, because the engine's differ a little. The paper says
that a sequence's likelihood tolerates such differences, so GSPO can take the engine's log-probs as they are, which
saves a forward pass. Against it: the bounds of GSPO are hundreds of times narrower than those of GRPO, so a small
difference can decide whether a sequence is clipped.

Two disturbances. *bfloat16*: weights and arithmetic of engine and learner have 8 significant bits, so log-probs differ
with the order of the sums; a look at three iterations gave a mean gap of 0.002 per token. *Stale*: an iteration is
sampled by the weights before the last update (`cluster.max_staleness = 1`). Under each, both methods take old log-probs
that the learner recomputes, or those of the engine (`method.old_logprobs`). The packaged model on its task, 20
iterations, four minibatches, the bounds of the papers, and the learning rate of the study of clip fractions.

Compared, within a seed: the share of right answers over the last ten iterations. The *change* of a method is that share
with the engine's log-probs minus that with recomputed ones. The claim is *shown* if GSPO's change minus GRPO's has an
interval above 0, *opposite* if below. Beside it: the share of clipped tokens, and the spread of the method's ratios.

Stated after those runs and before their own, the part `rounded`: in bfloat16 engine and learner have the same weights.
Under *8-bit* the engine has coarser ones: each row of a matrix rounded to 8 bits (studies/rounded_engine.py); the
learner computes in float32. All else, the comparison and the rule are as above. A look at seed 99 with GSPO gave a mean
gap of 0.002 per token, and at most 0.27, so the bound on the gap is raised to 2.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.clip_fraction import BOUNDS, CLIPPED
from studies.figures import COLOURS, line
from studies.gspo_regimes import BASE, LAST
from studies.stable_rates import HIGH, LOW, RIGHT, spread
from studies.study import LEAST_ACCURACY, Arm, Choice, Estimate, Exact, Measured, Study, cost, table

EXACT = "machine.dtype = float32"
ENGINES = {"bfloat16": ("machine.dtype = bfloat16",), "stale": (EXACT, "cluster.max_staleness = 1")}
ROUNDED = {"8-bit": (EXACT, 'engine = {kind = "rounded_engine:Rounded", bits = 8, max_logprob_diff = 2.0}')}
SOURCES = ("learner", "engine")


def arm(method: str, *settings: str) -> Arm:
    """A method with its paper's bounds."""
    return Arm(label=method.upper(), method=method, task="calculator", settings=(*BASE, *BOUNDS[method], *settings))


def arms(engines: Mapping[str, tuple[str, ...]]) -> dict[str, Arm]:
    """Both methods with both sources of old log-probs, under each engine."""
    return {
        f"{method} {engine} {source}": arm(method, *own, f"method.old_logprobs = {source}")
        for engine, own in engines.items()
        for method in BOUNDS
        for source in SOURCES
    }


ARMS = {f"{method} exact": arm(method, EXACT) for method in BOUNDS} | arms(ENGINES)
PARTS = {"engines": (ARMS, tuple(ENGINES)), "rounded": (arms(ROUNDED), tuple(ROUNDED))}
"""The arms and the disturbed engines of each part."""


def right(m: Measured, arm: str) -> Estimate:
    """The share of right answers over the last ten iterations."""
    return m.mean(arm, RIGHT, LAST - 9, LAST)


def change(m: Measured, method: str, engine: str) -> Estimate:
    """The share of right answers with the engine's log-probs, minus that with recomputed ones."""
    return right(m, f"{method} {engine} engine").minus(right(m, f"{method} {engine} learner"), LEAST_ACCURACY)


def beside(m: Measured, arm: str) -> tuple[str, str]:
    """The share of clipped tokens, and the mean spread of the ratios."""
    spreads = [x.mean for _, x in spread(m, arm)]
    return f"{100 * m.mean(arm, CLIPPED, 1, LAST).mean:.2g} %", f"{sum(spreads) / len(spreads):.2g}"


def parts_of(arm: str) -> tuple[str, str, str]:
    """The method, the engine and the source of the old log-probs of an arm."""
    method, engine, source = f"{arm} learner".split()[:3]
    return method, engine, source


def comparison(m: Measured, engines: Sequence[str]) -> str:
    """The table of the changes, and that of the arms."""
    claims, arms = [], []
    for engine in engines:
        more = change(m, "gspo", engine).minus(change(m, "grpo", engine))
        claims.append((engine, more, len(m.seeds), more.verdict))
    for key in m.arms:
        method, engine, source = parts_of(key)
        changed = change(m, method, engine) if source == "engine" else ""
        arms.append((method.upper(), engine, source, right(m, key), *beside(m, key), changed))
    head = ("method", "engine", "old log-probs by", "right at the end", "clipped", "spread of ratios", "change")
    claim = table(("engine", "GSPO's change minus GRPO's", "seeds", "result"), claims)
    return f"{claim}\n\n{table(head, arms)}\n\n{cost(m)}"


def blocks(measured: Mapping[str, Measured], exact: Exact) -> dict[str, str]:
    m = measured["engines"]
    gspo, grpo = ([change(m, name, x).stated("higher", "lower") for x in ENGINES] for name in ("gspo", "grpo"))
    return {part: comparison(measured[part], engines) for part, (_, engines) in PARTS.items() if part in measured} | {
        "engine_logprobs": (
            f"With them in place of recomputed "
            f"ones, GSPO's share of right answers changes by {gspo[0]} in bfloat16 and by {gspo[1]} with stale "
            f"samples, GRPO's by {grpo[0]} and by {grpo[1]}."
        )
    }


def rows(measured: Mapping[str, Measured], exact: Exact) -> list[tuple[object, ...]]:
    values = [
        (*parts_of(key), seed, metric, i, x)
        for m in measured.values()
        for key in m.arms
        for metric in (RIGHT, CLIPPED, LOW, HIGH)
        for i, estimate in m.series(key, metric)
        for seed, x in zip(m.seeds, estimate.values, strict=True)
    ]
    return [("method", "engine", "old log-probs by", "seed", "metric", "iteration", "value"), *values]


def draw(panels: Sequence[Any], measured: Mapping[str, Measured], exact: Exact) -> None:
    owners = [(measured.get(part), engine) for part, (_, engines) in PARTS.items() for engine in engines]
    for above, below, (m, engine) in zip(panels[:3], panels[3:], owners, strict=True):
        if m is None:
            continue
        for colour, method in enumerate(BOUNDS):
            for source in SOURCES:
                key = f"{method} {engine} {source}"
                style = {"color": COLOURS[colour], "linestyle": "--" if source == "engine" else "-", "linewidth": 2}
                line(above, m.series(key, RIGHT), colour, f"{method.upper()}, {source}", dashed=source == "engine")
                below.plot(*zip(*((i, x.mean) for i, x in spread(m, key))), **style)
        above.set(title=f"{engine}: right answers", xlabel="iteration", ylim=(0, 1))
        below.set(title=f"{engine}: spread of ratios", xlabel="iteration", yscale="log")
    panels[0].legend(loc="lower right")


STUDY = Study(
    name="engine_logprobs",
    page="docs/studies/engine-logprobs.md",
    parts={part: own for part, (own, _) in PARTS.items()},
    metrics=(RIGHT, CLIPPED, LOW, HIGH),
    blocks=blocks,
    rows=rows,
    draw=draw,
    alt="Right answers, and the spread of the ratios, over iterations, for GRPO and GSPO with old log-probs of the "
    "learner and of the engine, in bfloat16, with stale samples, and with an 8-bit engine.",
    panels=6,
    use=("studies/rounded_engine.py",),
    tuned={part: Choice(RIGHT, 10) for part in PARTS},
)
