"""Reads a run directory, also while the run still writes to it. Unreadable data are counted and are never fatal."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupwise.runs.json_lines import json_objects
from groupwise.runs.run_info import FORMAT
from groupwise.runs.run_layout import RunLayout

UNREADABLE = (OSError, UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError, RecursionError)


@dataclass(frozen=True, slots=True, eq=False)
class MetricCurve:
    """A metric: `values[i]` at iteration `iterations[i]`, ascending. Values that were not finite are NaN."""

    iterations: np.ndarray
    metric_values: np.ndarray

    @property
    def finite(self) -> "MetricCurve":
        finite = np.isfinite(self.metric_values)
        return MetricCurve(self.iterations[finite], self.metric_values[finite])


@dataclass(frozen=True, slots=True, eq=False)
class ReportRun:
    """The data of a run directory as the report reads it: metrics, timings, info and recipe.

    `has_model`: the model is written, so the run has ended.
    """

    layout: RunLayout
    name: str
    run_info: Mapping[str, Any]
    recipe_text: str
    recipe_fields: Mapping[str, Any]
    metrics: Mapping[str, MetricCurve]
    timings: Mapping[str, MetricCurve]
    ever_true_flags: frozenset[str]
    unreadable_data_notes: tuple[str, ...]
    has_model: bool = False

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.layout.run_directory

    @property
    def last(self) -> int:
        """The last iteration that has a metric; 0 without metrics."""
        return max((int(c.iterations[-1]) for c in self.metrics.values() if len(c.iterations)), default=0)


def read(path: Path) -> ReportRun:
    """Read the run in directory `path`."""
    notes: list[str] = []
    layout = RunLayout(path)
    about = _mapping(layout.info, notes)
    if about and (version := about.get("format")) != FORMAT:
        notes.append(f"run.json has format {version}; this version reads format {FORMAT}, so names here may be missing")
    recipe = _text(layout.recipe, notes)
    try:
        fields = flat(tomllib.loads(recipe))
    except UNREADABLE as error:
        fields = {}
        notes.append(f"recipe.toml could not be parsed: {error}")
    metrics, flags = table(layout.metrics, notes)
    timings, _ = table(layout.timings, notes)
    name = about.get("name")
    return ReportRun(
        layout=layout,
        name=name if isinstance(name, str) and name else path.resolve().name,
        run_info=about,
        recipe_text=recipe,
        recipe_fields=fields,
        metrics=metrics,
        timings=timings,
        ever_true_flags=flags,
        unreadable_data_notes=tuple(notes),
        has_model=layout.model.is_dir(),
    )


def is_answer(row: Mapping[str, Any]) -> bool:
    """Whether a row of a sample file is an answer. Branches of a tree, hints and the like have other roles."""
    return row.get("role") in (None, "answer")


def lines(path: Path, notes: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Read the JSON objects of a JSON-lines file. Skips an incomplete last line, which the run is still writing."""
    if not path.exists():
        return
    bad = 0
    with path.open("rb") as file:
        for line, row in json_objects(file):
            if row is not None:
                yield row
            elif line.strip():
                bad += 1
    if bad and notes is not None:
        notes.append(f"{path.name}: {bad} unreadable {'line' if bad == 1 else 'lines'} left out")


def table(path: Path, notes: list[str]) -> tuple[dict[str, MetricCurve], frozenset[str]]:
    """Read the numbers of a JSON-lines file as columns by name, and the names of values that were ever `true`.

    If an iteration has several rows, the last one counts.
    """
    cells: dict[str, dict[int, float]] = {}
    flags: set[str] = set()
    for row in lines(path, notes):
        iteration = row.get("iteration")
        if not isinstance(iteration, int) or not 0 <= iteration < 2**31:
            continue
        for name, value in row.items():
            if value is True:
                flags.add(name)
            elif name != "iteration" and (value is None or (isinstance(value, int | float) and value is not False)):
                cells.setdefault(name, {})[iteration] = as_float(value)
    return {
        name: MetricCurve(np.array(sorted(cell), np.int64), np.array([cell[i] for i in sorted(cell)], np.float64))
        for name, cell in cells.items()
    }, frozenset(flags)


def as_float(value: Any) -> float:
    """Convert to float; NaN for every value that is not a finite number.

    >>> as_float(3), as_float(None), as_float(10**400)
    (3.0, nan, nan)
    """
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
    return x if abs(x) < float("inf") else float("nan")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested dicts to one dict with dotted keys.

    >>> flat({"a": {"b": 1, "c": [{"d": 2}]}})
    {'a.b': 1, 'a.c.0.d': 2}
    """
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        pairs = enumerate(value)
    else:
        return {path: value}
    return {k: v for key, inner in pairs for k, v in flat(inner, f"{path}.{key}" if path else str(key)).items()}


def thin(curve: MetricCurve, most: int = 2000) -> MetricCurve:
    """Reduce a curve to at most `most` points: the lowest and the highest value of each bucket of iterations.

    The first and the last point stay. Every point keeps its iteration.

    >>> thin(MetricCurve(np.arange(9), np.array([0, 1, 9, 1, 0, 1, -9, 1, 0.0])), most=4).values.tolist()
    [0.0, 9.0, -9.0, 0.0]
    """
    if len(curve.iterations) <= most:
        return curve
    n = len(curve.iterations)
    indices = {0, n - 1}
    for bucket in np.array_split(np.arange(1, n - 1), max(most // 2 - 1, 1)):
        finite = bucket[np.isfinite(curve.metric_values[bucket])]
        if len(finite):
            indices |= {
                int(finite[curve.metric_values[finite].argmin()]),
                int(finite[curve.metric_values[finite].argmax()]),
            }
    rows = np.array(sorted(indices))
    return MetricCurve(curve.iterations[rows], curve.metric_values[rows])


def _text(path: Path, notes: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except UNREADABLE as error:
        notes.append(f"{path.name} could not be read: {error}")
        return ""


def _mapping(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(_text(path, notes) or "{}", parse_constant=lambda _: None)
    except UNREADABLE as error:
        notes.append(f"{path.name} could not be parsed: {error}")
        return {}
    return value if isinstance(value, dict) else {}
