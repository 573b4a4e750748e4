"""Warning rules over the metrics of a run, and the run's headline."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from groupwise.core import counted
from groupwise.data import (
    ACCURACY,
    ACCURACY_GREEDY,
    ENTROPY,
    ENTROPY_SHARE,
    ENTROPY_WINDOW,
    GAPS,
    GRAD_NORM,
    INTERVALS,
    LARGEST_GAP,
    LOSS,
    NO_SIGNAL,
    REWARD,
    SCORE,
    SCORE_GREEDY,
    TRUNCATED,
    UNVERIFIABLE,
    gap_bound,
    metric_bound,
)
from groupwise.report.read_run import MetricCurve, ReportRun
from groupwise.runs.best_checkpoint import HELD_OUT
from groupwise.runs.learning_check import NEEDED, has_solved, is_learning

Curves = Mapping[str, MetricCurve]
ACCURACIES, SCORES = (ACCURACY_GREEDY, ACCURACY), (SCORE_GREEDY, SCORE)


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning about a run: its text, the iteration to look at, and the metric that it is about."""

    rule_name: str
    text: str
    iteration: int
    metric: str


@dataclass(frozen=True, slots=True)
class WarningRule:
    """A rule that warns about a run, if `find_evidence` returns (text, iteration). It reads `needed_metrics`."""

    description: str
    needed_metrics: tuple[str, ...]
    find_evidence: Callable[[ReportRun], tuple[str, int] | None]


@dataclass(frozen=True, slots=True)
class AboveBoundFinder:
    """The `find` of a rule that warns if a metric exceeds a bound, from `METRICS` or from the run's recipe."""

    metric: str
    description: str
    bound_from_run: Callable[[ReportRun], float] | None = None

    def __call__(self, run: ReportRun) -> tuple[str, int] | None:
        return self.evidence(run.metrics[self.metric].finite, run)

    def evidence(self, c: MetricCurve, run: ReportRun) -> tuple[str, int] | None:
        """The warning about these iterations of the metric."""
        bound = self.bound_from_run(run) if self.bound_from_run else metric_bound(self.metric)
        over = c.metric_values > bound
        if not over.any():
            return None
        top = int(c.metric_values.argmax())
        first = int(c.iterations[over][0])
        when = f"over {bound:g} in {over.sum()} of {counted(len(over), 'iteration')}, first at {first}"
        return f"{self.description}: {when}, highest {c.metric_values[top]:.4g} at {c.iterations[top]}", first


def entropy_fell(
    run: ReportRun, *, window: int = ENTROPY_WINDOW, left: float = ENTROPY_SHARE
) -> tuple[str, int] | None:
    """Warn if entropy is at most `left` times its maximum over the last `window` iterations, unless the run learns."""
    c = run.metrics[ENTROPY].finite
    for i in range(1, len(c.iterations)):
        before = np.flatnonzero(c.iterations[:i] >= c.iterations[i] - window)
        if not len(before):
            continue
        top = before[c.metric_values[before].argmax()]
        high = c.metric_values[top]
        if (
            high <= 0
            or c.metric_values[i] > left * high
            or is_learning(*(line_at(run, int(c.iterations[j])) for j in (0, top, i)))
        ):
            continue
        fall = f"from {high:.4g} to {c.metric_values[i]:.4g}"
        return f"entropy fell {1 - c.metric_values[i] / high:.0%} within {window} iterations, {fall}", int(
            c.iterations[i]
        )
    return None


def little_signal(run: ReportRun) -> tuple[str, int] | None:
    """Warn if most groups of an iteration have equal rewards, unless the run has solved its task."""
    c = run.metrics[NO_SIGNAL].finite
    open_ = [
        i
        for i, at in enumerate(c.iterations)
        if not has_solved(line_at(run, int(c.iterations[0])), line_at(run, int(at)))
    ]
    return AboveBoundFinder(NO_SIGNAL, "share of groups without signal").evidence(
        MetricCurve(c.iterations[open_], c.metric_values[open_]), run
    )


def line_at(run: ReportRun, iteration: int) -> dict[str, float]:
    """The metrics of an iteration by which `is_learning` decides, as far as it has them."""
    curves = {name: run.metrics[name].finite for name in NEEDED if name in run.metrics}
    return {
        name: float(c.metric_values[c.iterations == iteration][0])
        for name, c in curves.items()
        if iteration in c.iterations
    }


def gradient_spike(run: ReportRun, *, times: float = 10, window: int = 20) -> tuple[str, int] | None:
    """Warn if a gradient norm is above `times` the median of up to `window` norms before it (at least five)."""
    c = run.metrics[GRAD_NORM].finite
    spikes = [
        (c.metric_values[i] / middle, i)
        for i in range(5, len(c.iterations))
        if (middle := float(np.median(c.metric_values[max(0, i - window) : i]))) > 0
        and c.metric_values[i] > times * middle
    ]
    if not spikes:
        return None
    factor, i = max(spikes)
    where = f"{c.metric_values[i]:.4g} at {c.iterations[i]} is {factor:.0f} times the median before it"
    return f"gradient norm spiked in {counted(len(spikes), 'iteration')}: {where}", int(c.iterations[i])


def unverified(run: ReportRun) -> tuple[str, int] | None:
    """Warn if too many answers were unverifiable. The run's outcome metrics may be counts or shares."""
    curves, bound = run.metrics, metric_bound(UNVERIFIABLE)
    unverifiable = curves[UNVERIFIABLE]
    total = np.zeros(len(unverifiable.iterations))
    for name, curve in curves.items():
        if name.startswith("outcome/"):
            total += np.nan_to_num(
                np.interp(unverifiable.iterations, curve.iterations, np.nan_to_num(curve.metric_values))
            )
    share = np.nan_to_num(unverifiable.metric_values) / np.where(total > 0, total, 1)
    over = share > bound
    if not over.any():
        return None
    top = int(share.argmax())
    first = int(unverifiable.iterations[over][0])
    when = f"over {bound:.0%} in {over.sum()} of {counted(len(over), 'iteration')}, first at {first}"
    return f"unverifiable answers: {when}, highest {share[top]:.1%} at {unverifiable.iterations[top]}", first


def reward_alone(run: ReportRun, *, near: int = 5) -> tuple[str, int] | None:
    """Warn if the reward rises clearly between two evaluations and the held-out metric does not: reward hacking.

    The metric is the score if verdicts carry one, as the reward is made from it, else the accuracy.
    """
    curves = run.metrics
    name = held_out(curves, (*SCORES, *ACCURACIES))
    assert name is not None, "the rule needs a held-out figure"
    reward, heldout = curves[REWARD].finite, curves[name].finite
    if len(heldout.iterations) < 2 or len(reward.iterations) < 2 * near:
        return None

    def around(iteration: int) -> np.ndarray:
        return reward.metric_values[np.argsort(np.abs(reward.iterations - iteration), kind="stable")[:near]]

    last, best = len(heldout.iterations) - 1, int(heldout.metric_values.argmax())
    end = around(int(heldout.iterations[last]))
    for start in dict.fromkeys((0, best)):
        begin = around(int(heldout.iterations[start]))
        clearly = 3 * np.sqrt((begin.var(ddof=1) + end.var(ddof=1)) / near) + 1e-9
        low, high = _interval(curves, name, int(heldout.iterations[start])) or (-0.02, 0.02)
        slack = 0.0 if start == 0 else (high - low) / 2
        rose = end.mean() - begin.mean() > clearly
        if start < last and rose and heldout.metric_values[last] <= heldout.metric_values[start] - slack:
            reward_text = f"reward rose {begin.mean():.4g} → {end.mean():.4g}"
            figure = "score" if name in SCORES else "accuracy"
            heldout_text = (
                f"held-out {figure} went {heldout.metric_values[start]:.4g} → {heldout.metric_values[last]:.4g}"
            )
            when = f"from iteration {heldout.iterations[start]} to {heldout.iterations[last]}"
            return f"{reward_text} {when} while {heldout_text}", int(heldout.iterations[last])
    return None


def not_finite(run: ReportRun) -> tuple[str, int] | None:
    """Warn if a loss or a gradient norm is NaN or infinite."""
    curves = run.metrics
    cases = []
    for name in (LOSS, GRAD_NORM):
        if name in curves and (bad := ~np.isfinite(curves[name].metric_values)).any():
            cases.append((int(curves[name].iterations[bad][0]), name, int(bad.sum())))
    if not cases:
        return None
    first, name, times = min(cases)
    return f"{name} was not finite in {counted(times, 'iteration')}, first at {first}", first


def max_logprob_diff(run: ReportRun) -> float:
    """The limit of the engine-learner log-prob gap: `engine.max_logprob_diff` of the run's recipe."""
    bound, dtype = (
        run.recipe_fields.get("engine.max_logprob_diff", "by_dtype"),
        run.recipe_fields.get("machine.dtype", "float32"),
    )
    return gap_bound(bound, dtype if dtype in GAPS else "float32")


def above(
    description: str, series: str, what: str, bound_of: Callable[[ReportRun], float] | None = None
) -> WarningRule:
    """A rule that warns if a metric is above its bound. `{bound}` in the description becomes the bound."""
    bound = "" if bound_of else f"{metric_bound(series):g}"
    return WarningRule(description.format(bound=bound), (series,), AboveBoundFinder(series, what, bound_of))


RULES = {
    "entropy": WarningRule("entropy fell 80 % within 20 iterations", (ENTROPY, REWARD), entropy_fell),
    "no signal": WarningRule(
        f"more than {metric_bound(NO_SIGNAL):g} of the groups carry no signal", (NO_SIGNAL,), little_signal
    ),
    "truncated": above(
        "more than {bound} of the answers hit the length limit", TRUNCATED, "share of truncated answers"
    ),
    "engines": above(
        "engine and learner log-probs differ by more than engine.max_logprob_diff",
        LARGEST_GAP,
        "largest engine-learner log-prob gap",
        max_logprob_diff,
    ),
    "gradient": WarningRule("gradient norm over ten times its running median", (GRAD_NORM,), gradient_spike),
    "unverifiable": WarningRule(
        f"over {metric_bound(UNVERIFIABLE):.0%} of the answers could not be verified", (UNVERIFIABLE,), unverified
    ),
    "reward alone": WarningRule("reward up while held-out is flat or down", (REWARD, ACCURACY), reward_alone),
    "missing": above(
        "an iteration trained on fewer prompts than the recipe asks for", "rollout/missing", "missing prompts"
    ),
    "skipped": above("optimizer steps were skipped", "steps_skipped", "skipped optimizer steps"),
    "not finite": WarningRule("loss or gradient norm not finite", (LOSS,), not_finite),
}


def find_warnings(run: ReportRun) -> tuple[list[RunWarning], list[str]]:
    """The warnings of a run, and the names of the rules whose metrics the run does not have."""
    metrics = set(run.metrics) | ({ACCURACY} if held_out(run.metrics, (*SCORES, *ACCURACIES)) else set())
    warnings, unchecked = [], []
    for name, rule in RULES.items():
        if not set(rule.needed_metrics) <= metrics:
            unchecked.append(name)
        elif (evidence := rule.find_evidence(run)) is not None:
            warnings.append(RunWarning(name, *evidence, metric=rule.needed_metrics[0]))
    return warnings, unchecked


def held_out(curves: Curves, names: Iterable[str] = HELD_OUT) -> str | None:
    """The first of these metrics for which the run has a value; None if it has none."""
    return next((name for name in names if name in curves and len(curves[name].finite.iterations)), None)


def leading(curves: Curves) -> str | None:
    """The metric that shows what a run learned: the first held-out one whose value changed, else the first one.

    A score says more than an accuracy that stays at 0. Without a held-out metric, it is the reward.
    """
    values = {name: curves[name].finite.metric_values for name in HELD_OUT if name in curves}
    moved = (name for name, value in values.items() if len(value) and value[0] != value[-1])
    return next(moved, None) or held_out(curves, (*HELD_OUT, REWARD))


def headline(run: ReportRun, warnings: int) -> str:
    """The run in one line: first and last value of its leading metric, iterations, number of warnings."""
    planned = run.run_info.get("iterations")
    length = counted(run.last, "iteration")
    if isinstance(planned, int) and run.last < planned:
        # Only a solved run writes its model before the last iteration.
        length = f"{run.last} of {counted(planned, 'iteration')}{': solved' if run.has_model else ' so far'}"
    tail = counted(warnings, "warning")
    name = leading(run.metrics)
    if name is None:
        return f"no metrics yet, {length}; {tail}"
    head, curve = HELD_OUT.get(name, REWARD), run.metrics[name].finite
    if len(curve.iterations) == 1:
        return f"{head} {curve.metric_values[0]:.2f} at iteration {curve.iterations[0]}, {length}; {tail}"
    interval = _interval(run.metrics, name, int(curve.iterations[-1]))
    ends = f" ({interval[0]:.2f}..{interval[1]:.2f})" if interval and interval[0] < interval[1] else ""
    return f"{head} {curve.metric_values[0]:.2f} → {curve.metric_values[-1]:.2f}{ends} in {length}; {tail}"


def _interval(curves: Curves, figure: str, iteration: int) -> tuple[float, float] | None:
    """The 95 % interval of a held-out metric at an iteration; None without one."""
    if figure not in INTERVALS:
        return None
    ends = []
    for name in INTERVALS[figure]:
        curve = curves.get(name)
        here = curve.metric_values[curve.iterations == iteration] if curve is not None else np.empty(0)
        if not len(here) or np.isnan(here[0]):
            return None
        ends.append(float(here[0]))
    return ends[0], ends[1]
