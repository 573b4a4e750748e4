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
    """A chart of metrics that answer the same question; `lines` maps the metrics to their labels.

    `intervals` maps a metric to the metrics of its interval's ends. `notes` maps a flag to a note that is shown if the
    flag was ever true. `range` fixes the axis; `log` allows a logarithmic one; `wide` spans two columns.
    """

    title: str
    lines: Mapping[str, str]
    intervals: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""
    range: tuple[float, float] | None = None
    log: bool = False
    wide: bool = False

    @property
    def question(self) -> str:
        """The question that the chart's metrics answer."""
        return METRICS[next(iter(self.lines))].question


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top of the page, from the first of `metric_choices` that the run has.

    `change` shows the first and the last value; `iterations` shows the run's length.
    """

    title: str
    metric_choices: tuple[str, ...]
    statistic: Literal["change", "sum", "duration", "median", "iterations"]


CHARTS = (
    Chart(title="Held-out loss", lines={EVAL_LOSS: "loss"}, hint="of the answers that held-out rows store", wide=True),
    Chart(
        title="Stored answers",
        lines={EVAL_TOKEN_ACCURACY: "likeliest tokens", EVAL_PAIR_ACCURACY: "pairs in order"},
        hint="held-out share",
        range=(0, 1),
    ),
    Chart(
        title="Implicit rewards",
        lines={"rewards/chosen": "chosen", "rewards/rejected": "rejected", "rewards/margins": "margin"},
    ),
    Chart(
        title="Held-out accuracy",
        lines={ACCURACY_GREEDY: "greedy", ACCURACY: "sampled"},
        intervals=INTERVALS,
        hint="bands: 95 % intervals over problems",
        range=(0, 1),
        wide=True,
    ),
    Chart(
        title="Held-out score",
        lines={SCORE_GREEDY: "greedy", SCORE: "sampled"},
        intervals=INTERVALS,
        hint="bands: 95 % intervals over problems",
        wide=True,
    ),
    Chart(title="Reward", lines={REWARD: "reward"}, hint="mean over answers"),
    Chart(
        title="Outcomes",
        lines={
            "outcome/correct": "correct", "outcome/wrong": "wrong", "outcome/malformed": "malformed",
            UNVERIFIABLE: "unverifiable",
        },
        hint="share of answers",
    ),
    Chart(
        title="Groups without signal",
        lines={NO_SIGNAL: "none", "groups/all_right": "all right", "groups/all_wrong": "all wrong"},
        range=(0, 1),
    ),
    Chart(title="Reward spread", lines={"reward_std": "std within groups"}),
    Chart(
        title="Rollouts",
        lines={"rollout/selected": "selected", "rollout/dropped": "dropped"},
        hint="per iteration",
    ),
    Chart(
        title="Loss",
        lines={LOSS: "loss"},
        notes={
            ZERO_LOSS: "With one minibatch, one epoch and group-centred advantages, the loss of a step is 0 by "
            "construction. Its gradient is not 0."
        },
    ),
    Chart(title="Gradient norm", lines={GRAD_NORM: "before", "grad_norm_clipped": "after clipping"}, log=True),
    Chart(
        title="Clipped tokens",
        lines={"clip_ratio/low_mean": "low side", "clip_ratio/high_mean": "high side"},
        hint="share",
    ),
    Chart(
        title="Ratio",
        lines={
            "ratio/max": "max", "ratio/p99": "99 %", "ratio/p50": "50 %", "ratio/p01": "1 %", "ratio/mean": "mean",
            "ratio/min": "min",
        },
    ),
    Chart(
        title="Advantage",
        lines={"advantage/max": "max", "advantage/mean": "mean", "advantage/min": "min"},
        hint="over tokens",
    ),
    Chart(title="Changed experts", lines={"routing/changed": "changed"}, hint="share of choices"),
    Chart(title="Load of experts", lines={"routing/balance": "balance"}, hint="even load: experts per token"),
    Chart(title="Learning rate", lines={"learning_rate": "learning rate"}),
    Chart(title="Skipped steps", lines={"steps_skipped": "skipped"}),
    Chart(title="Entropy", lines={ENTROPY: "entropy"}),
    Chart(title="KL", lines={"kl": "kl"}),
    Chart(
        title="Answer length",
        lines={
            MEAN_LENGTH: "mean", "completions/mean_length_correct": "correct", "completions/mean_length_wrong": "wrong",
            "completions/max_length": "max", "eval/mean_length": "held-out",
        },
        hint="tokens",
    ),
    Chart(
        title="Truncated",
        lines={TRUNCATED: "sampled", "eval/truncated": "held-out"},
        hint="share at the limit",
    ),
    Chart(
        title="Turns",
        lines={"turns/mean": "mean", "turns/max": "max", "eval/turns/mean": "held-out"},
        hint="the model's, per conversation",
    ),
    Chart(
        title="Tool calls",
        lines={
            "counts/calls": "calls", "counts/malformed": "malformed", "counts/errors": "tool failed",
            "counts/failed": "aborted",
        },
        hint="per conversation",
    ),
    Chart(
        title="The environment's tokens",
        lines={"turns/environment_tokens": "sampled", "eval/turns/environment_tokens": "held-out"},
        hint="share",
    ),
    Chart(
        title="Engine–learner log-prob gap",
        lines={LARGEST_GAP: "max", f"{GAP}/mean": "mean"},
        log=True,
    ),
    Chart(
        title="Lag",
        lines={STALENESS_MAX: "max", STALENESS_MEAN: "mean", VERSIONS: "versions"},
        hint="versions of the weights, over tokens",
    ),
    Chart(title="Tokens per second", lines={TOKENS_PER_SECOND: "tokens per second"}),
    Chart(title="Trained tokens", lines={TRAINED_TOKENS: "tokens"}, hint="per iteration"),
    Chart(title="Memory", lines={"memory_mib": "memory"}, hint="MiB"),
    Chart(
        title="Seconds",
        lines={
            SECONDS: "all", f"{SECONDS}/sample": "sample", f"{SECONDS}/learn": "learn", f"{SECONDS}/publish": "publish",
            f"{SECONDS}/evaluate": "evaluate", f"{SECONDS}/wait": "learner waits",
            f"{SECONDS}/engine_idle": "engines wait",
        },
        hint="per iteration",
    ),
)  # fmt: skip


TILES = (
    Tile("Held-out loss", (EVAL_LOSS,), "change"),
    Tile("Pairs in order", (EVAL_PAIR_ACCURACY,), "change"),
    Tile("Likeliest tokens", (EVAL_TOKEN_ACCURACY,), "change"),
    Tile("Held-out accuracy", (ACCURACY_GREEDY, ACCURACY), "change"),
    Tile("Held-out score", (SCORE_GREEDY, SCORE), "change"),
    Tile("Reward", (REWARD,), "change"),
    Tile("Entropy", (ENTROPY,), "change"),
    Tile("Answer length", (MEAN_LENGTH,), "change"),
    Tile("Iterations", (), "iterations"),
    Tile("Trained tokens", (TRAINED_TOKENS,), "sum"),
    Tile("Time", (SECONDS,), "duration"),
    Tile("Tokens / s, median", (TOKENS_PER_SECOND,), "median"),
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
