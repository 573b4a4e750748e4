"""The charts and tiles of the report page: which metrics they show, with labels and scales."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from groupwise.data import (
    ACCURACY,
    ACCURACY_GREEDY,
    ENTROPY,
    EVAL_LOSS,
    EVAL_PAIR_ACCURACY,
    EVAL_TOKEN_ACCURACY,
    GAP,
    GRAD_NORM,
    INTERVALS,
    LARGEST_GAP,
    LOSS,
    MEAN_LENGTH,
    METRICS,
    NO_SIGNAL,
    QUESTIONS,
    REWARD,
    SCORE,
    SCORE_GREEDY,
    SECONDS,
    SPEED,
    STALENESS_MAX,
    STALENESS_MEAN,
    TOKENS_PER_SECOND,
    TRAINED_TOKENS,
    TRUNCATED,
    UNVERIFIABLE,
    VERSIONS,
    ZERO_LOSS,
    find_metric,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of metrics that answer the same question; `metric_labels` maps the metrics to their labels.

    `interval_metrics` maps a metric to the metrics of its interval's ends. `flag_notes` maps a flag to a note that is
    shown if the flag was ever true. `axis_range` fixes the axis; `allows_log_axis` allows a logarithmic one;
    `spans_two_columns` spans two columns.
    """

    title: str
    metric_labels: Mapping[str, str]
    interval_metrics: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    flag_notes: Mapping[str, str] = field(default_factory=dict)
    subtitle: str = ""
    axis_range: tuple[float, float] | None = None
    allows_log_axis: bool = False
    spans_two_columns: bool = False

    @property
    def question(self) -> str:
        """The question that the chart's metrics answer."""
        return METRICS[next(iter(self.metric_labels))].question


@dataclass(frozen=True, slots=True)
class MetricTile:
    """A number at the top of the page, from the first of `metric_choices` that the run has.

    `change` shows the first and the last value; `iterations` shows the run's length.
    """

    title: str
    metric_choices: tuple[str, ...]
    shown_statistic: Literal["change", "sum", "duration", "median", "iterations"]


CHARTS = (
    Chart(
        title="Held-out loss",
        metric_labels={EVAL_LOSS: "loss"},
        subtitle="of the answers that held-out rows store",
        spans_two_columns=True,
    ),
    Chart(
        title="Stored answers",
        metric_labels={EVAL_TOKEN_ACCURACY: "likeliest tokens", EVAL_PAIR_ACCURACY: "pairs in order"},
        subtitle="held-out share",
        axis_range=(0, 1),
    ),
    Chart(
        title="Implicit rewards",
        metric_labels={"rewards/chosen": "chosen", "rewards/rejected": "rejected", "rewards/margins": "margin"},
    ),
    Chart(
        title="Held-out accuracy",
        metric_labels={ACCURACY_GREEDY: "greedy", ACCURACY: "sampled"},
        interval_metrics=INTERVALS,
        subtitle="bands: 95 % intervals over problems",
        axis_range=(0, 1),
        spans_two_columns=True,
    ),
    Chart(
        title="Held-out score",
        metric_labels={SCORE_GREEDY: "greedy", SCORE: "sampled"},
        interval_metrics=INTERVALS,
        subtitle="bands: 95 % intervals over problems",
        spans_two_columns=True,
    ),
    Chart(title="Reward", metric_labels={REWARD: "reward"}, subtitle="mean over answers"),
    Chart(
        title="Outcomes",
        metric_labels={
            "outcome/correct": "correct", "outcome/wrong": "wrong", "outcome/malformed": "malformed",
            UNVERIFIABLE: "unverifiable",
        },
        subtitle="share of answers",
    ),
    Chart(
        title="Groups without signal",
        metric_labels={NO_SIGNAL: "none", "groups/all_right": "all right", "groups/all_wrong": "all wrong"},
        axis_range=(0, 1),
    ),
    Chart(title="Reward spread", metric_labels={"reward_std": "std within groups"}),
    Chart(
        title="Rollouts",
        metric_labels={"rollout/selected": "selected", "rollout/dropped": "dropped"},
        subtitle="per iteration",
    ),
    Chart(
        title="Loss",
        metric_labels={LOSS: "loss"},
        flag_notes={
            ZERO_LOSS: "With one minibatch, one epoch and group-centred advantages, the loss of a step is 0 by "
            "construction. Its gradient is not 0."
        },
    ),
    Chart(
        title="Gradient norm",
        metric_labels={GRAD_NORM: "before", "grad_norm_clipped": "after clipping"},
        allows_log_axis=True,
    ),
    Chart(
        title="Clipped tokens",
        metric_labels={"clip_ratio/low_mean": "low side", "clip_ratio/high_mean": "high side"},
        subtitle="share",
    ),
    Chart(
        title="Ratio",
        metric_labels={
            "ratio/max": "max", "ratio/p99": "99 %", "ratio/p50": "50 %", "ratio/p01": "1 %", "ratio/mean": "mean",
            "ratio/min": "min",
        },
    ),
    Chart(
        title="Advantage",
        metric_labels={"advantage/max": "max", "advantage/mean": "mean", "advantage/min": "min"},
        subtitle="over tokens",
    ),
    Chart(title="Changed experts", metric_labels={"routing/changed": "changed"}, subtitle="share of choices"),
    Chart(
        title="Load of experts",
        metric_labels={"routing/balance": "balance"},
        subtitle="even load: experts per token",
    ),
    Chart(title="Learning rate", metric_labels={"learning_rate": "learning rate"}),
    Chart(title="Skipped steps", metric_labels={"steps_skipped": "skipped"}),
    Chart(title="Entropy", metric_labels={ENTROPY: "entropy"}),
    Chart(title="KL", metric_labels={"kl": "kl"}),
    Chart(
        title="Answer length",
        metric_labels={
            MEAN_LENGTH: "mean", "completions/mean_length_correct": "correct", "completions/mean_length_wrong": "wrong",
            "completions/max_length": "max", "eval/mean_length": "held-out",
        },
        subtitle="tokens",
    ),
    Chart(
        title="Truncated",
        metric_labels={TRUNCATED: "sampled", "eval/truncated": "held-out"},
        subtitle="share at the limit",
    ),
    Chart(
        title="Turns",
        metric_labels={"turns/mean": "mean", "turns/max": "max", "eval/turns/mean": "held-out"},
        subtitle="the model's, per conversation",
    ),
    Chart(
        title="Tool calls",
        metric_labels={
            "counts/calls": "calls", "counts/malformed": "malformed", "counts/errors": "tool failed",
            "counts/failed": "aborted",
        },
        subtitle="per conversation",
    ),
    Chart(
        title="The environment's tokens",
        metric_labels={"turns/environment_tokens": "sampled", "eval/turns/environment_tokens": "held-out"},
        subtitle="share",
    ),
    Chart(
        title="Engine–learner log-prob gap",
        metric_labels={LARGEST_GAP: "max", f"{GAP}/mean": "mean"},
        allows_log_axis=True,
    ),
    Chart(
        title="Lag",
        metric_labels={STALENESS_MAX: "max", STALENESS_MEAN: "mean", VERSIONS: "versions"},
        subtitle="versions of the weights, over tokens",
    ),
    Chart(title="Tokens per second", metric_labels={TOKENS_PER_SECOND: "tokens per second"}),
    Chart(title="Trained tokens", metric_labels={TRAINED_TOKENS: "tokens"}, subtitle="per iteration"),
    Chart(title="Memory", metric_labels={"memory_mib": "memory"}, subtitle="MiB"),
    Chart(
        title="Seconds",
        metric_labels={
            SECONDS: "all", f"{SECONDS}/sample": "sample", f"{SECONDS}/learn": "learn", f"{SECONDS}/publish": "publish",
            f"{SECONDS}/evaluate": "evaluate", f"{SECONDS}/wait": "learner waits",
            f"{SECONDS}/engine_idle": "engines wait",
        },
        subtitle="per iteration",
    ),
)  # fmt: skip


TILES = (
    MetricTile("Held-out loss", (EVAL_LOSS,), "change"),
    MetricTile("Pairs in order", (EVAL_PAIR_ACCURACY,), "change"),
    MetricTile("Likeliest tokens", (EVAL_TOKEN_ACCURACY,), "change"),
    MetricTile("Held-out accuracy", (ACCURACY_GREEDY, ACCURACY), "change"),
    MetricTile("Held-out score", (SCORE_GREEDY, SCORE), "change"),
    MetricTile("Reward", (REWARD,), "change"),
    MetricTile("Entropy", (ENTROPY,), "change"),
    MetricTile("Answer length", (MEAN_LENGTH,), "change"),
    MetricTile("Iterations", (), "iterations"),
    MetricTile("Trained tokens", (TRAINED_TOKENS,), "sum"),
    MetricTile("Time", (SECONDS,), "duration"),
    MetricTile("Tokens / s, median", (TOKENS_PER_SECOND,), "median"),
)


def charts_data(names: Iterable[str]) -> dict[str, Any]:
    """The page's data about charts, tiles and the metrics `names`, as JSON.

    Charts are in the order of their questions. The page draws a metric without a chart on its own.
    """
    charts = sorted(CHARTS, key=lambda chart: QUESTIONS.index(chart.question))
    known = {name: metric for name in names if (metric := find_metric(name)) is not None}
    return {
        "charts": [{**asdict(chart), "question": chart.question} for chart in charts],
        "tiles": [asdict(tile) for tile in TILES],
        "metrics": {name: {"meaning": metric.meaning, "better": metric.better} for name, metric in known.items()},
        "uncharted": ["iteration", "step"],
        "speed": SPEED,
        "seconds": SECONDS,
    }
