"""Studies: runs that measure whether a method has the effect that its paper states, against its parent method.

A study runs a method and its parent once per seed. `make atlas` stores the results; this module reads them.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from groupwise.certificates.code_hash import code_hash
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.recipe_toml import read_with_problems
from groupwise.core import WorkerLost, counted
from groupwise.evaluation.interval import mean_interval
from groupwise.methods import ExpectedEffect, PaperReference
from groupwise.models import find_model, fingerprint
from groupwise.models.model_directories import PACKAGED
from groupwise.runs.atomic_writes import write_file

SEEDS = (1, 2, 3)
MORE_SEEDS = (4, 5, 6)
"""Additional seeds of a study, for an effect that is undecided after `SEEDS`."""
SIZES = (
    "prompts = 8", "iterations = 20", "method.group_size = 8", "method.minibatches = 2", "evaluate.every = 0",
    "evaluate.problems = 128", "save.every = 0",
)  # fmt: skip
"""The recipe fields that all studies set, such as sizes."""
BUDGET = "evaluate.every = 5"
"""An additional setting of studies that compare held-out metrics at an equal number of tokens."""
HELD_OUT = "eval/"
"""The prefix of held-out metrics."""
RESULTS = Path("benchmarks/atlas/results.jsonl")
"""The file with the stored results of studies, in the repository."""

Verdict = Literal["shown", "not shown", "opposite"]


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study: a method on the packaged recipe of a task, with `settings` as in `ExpectedEffect`.

    >>> StudyRun("gspo", "calculator", 1, ("prompts = 4",)).recipe().prompts
    4
    """

    method: str
    task: str
    seed: int
    settings: tuple[str, ...] = ()

    def recipe(self) -> Recipe:
        """Build the recipe of one run of a study, from its task's packaged recipe. `Usage` for an invalid setting.

        Components in a user's file, such as `my_file:MyEngine`, are not loaded: `train` loads the files of its `use`.
        """
        lines = (line.split(" = ", 1) for line in (*SIZES, *self.settings))
        fields = [("method", self.method), *((path, text) for path, text in lines), ("seed", str(self.seed))]
        recipe, problems = read_with_problems(find_recipe(self.task), fields)
        if problems or recipe is None:
            raise one_error(problems)
        return recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRunResult:
    """The result of a study's run: metrics and generated tokens by iteration, and the code that produced it.

    `recipe_hash`, `code_hash` and `model_hash` are the hashes of the recipe, of the method's code, and of the weights
    of a packaged model; empty for another model.
    """

    trial: StudyRun
    metrics: Mapping[str, Mapping[int, float]]
    tokens: tuple[int, ...]
    cpu_seconds: float
    commit: str
    recipe_hash: str
    code_hash: str
    model_hash: str = ""

    def value(self, metric: str, last: int) -> float:
        """A metric up to iteration `last`: a held-out one at its last evaluation, others as the second half's mean."""
        points = {i: x for i, x in self.metrics.get(metric, {}).items() if 0 < i <= last}
        if metric.startswith(HELD_OUT):
            return points[max(points)] if points else math.nan
        late = [x for i, x in points.items() if i > last / 2]
        return math.fsum(late) / len(late) if late else math.nan

    def iterations_within(self, tokens: int) -> int:
        """The number of iterations, from the first, that together generate at most this many tokens."""
        total, count = 0, 0
        for n in self.tokens:
            total += n
            count += total <= tokens
        return count

    def as_json(self) -> dict[str, Any]:
        """The result as JSON, for a line of the file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EffectComparison:
    """A method's metric and its parent's, for each seed. `stale`: the code or the model has changed since the runs."""

    expected_effect: ExpectedEffect
    method_values: tuple[float, ...]
    parent_values: tuple[float, ...]
    stale: bool = False

    @property
    def differences(self) -> tuple[float, ...]:
        """The difference of the metric between the method and its parent, for each seed."""
        return tuple(a - b for a, b in zip(self.method_values, self.parent_values, strict=True))

    @property
    def mean(self) -> float:
        return math.fsum(self.differences) / len(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference over seeds, paired, by Student's t."""
        return mean_interval(self.differences)

    @property
    def verdict(self) -> Verdict:
        """Whether the runs show the stated effect or the opposite, by the interval and the smallest relevant mean."""
        low, high = self.interval if self.expected_effect.direction == "up" else [-x for x in reversed(self.interval)]
        if low > 0 and abs(self.mean) >= self.expected_effect.min_difference:
            return "shown"
        return "opposite" if high < 0 and abs(self.mean) >= self.expected_effect.min_difference else "not shown"

    @property
    def is_open(self) -> bool:
        """Whether more seeds could decide: the mean is large enough to be relevant, but its interval contains 0."""
        return self.verdict == "not shown" and abs(self.mean) >= self.expected_effect.min_difference

    def as_json(self) -> dict[str, Any]:
        """The comparison in a certificate."""
        by_seed = {"own": self.method_values, "parent": self.parent_values}
        return {"difference": self.mean, "interval": self.interval, **by_seed, "result": self.verdict}

    def __str__(self) -> str:
        low, high = self.interval
        stale = "; stale: the code has changed since" if self.stale else ""
        seeds = f"{counted(len(self.differences), 'seed')}"
        return f"{self.verdict}: {self.mean:+.3g}, 95 % interval {low:+.3g} to {high:+.3g} over {seeds}{stale}"


def trials_of(method: str, effect: ExpectedEffect, seed: int) -> tuple[StudyRun, StudyRun]:
    """The runs of a method and of its parent with one seed."""
    in_between = (BUDGET,) if effect.runs_matched_by == "tokens" and effect.metric.startswith(HELD_OUT) else ()
    common = (*in_between, *effect.settings)
    own = StudyRun(method, effect.task, seed, (*common, *effect.own_settings))
    return own, StudyRun(effect.parent, effect.task, seed, common)


def compare(method: str, effect: ExpectedEffect, results: Mapping[StudyRun, StudyRunResult]) -> EffectComparison | None:
    """Compare a method with its parent over the seeds for which both ran; None if too few did, or values are NaN."""
    pairs = [trials_of(method, effect, seed) for seed in (*SEEDS, *MORE_SEEDS)]
    found = [(results[own], results[parent]) for own, parent in pairs if own in results and parent in results]
    values = [values_of(effect, own, parent) for own, parent in found]
    if len(found) < len(SEEDS) or not all(map(math.isfinite, (x for pair in values for x in pair))):
        return None
    own_values, parent_values = zip(*values)
    return EffectComparison(
        effect, own_values, parent_values, any(is_stale(result) for pair in found for result in pair)
    )


def values_of(effect: ExpectedEffect, own: StudyRunResult, parent: StudyRunResult) -> tuple[float, float]:
    """The metric of a method and of its parent with one seed, at equal tokens or after all iterations."""
    if effect.runs_matched_by == "steps":
        lasts = len(own.tokens), len(parent.tokens)
    else:
        budget = min(sum(own.tokens), sum(parent.tokens))
        lasts = own.iterations_within(budget), parent.iterations_within(budget)
    return own.value(effect.metric, lasts[0]), parent.value(effect.metric, lasts[1])


def is_stale(result: StudyRunResult) -> bool:
    """Whether the method's code, or the packaged model that it starts from, has changed since this run."""
    return present_hashes(result.trial) != (result.code_hash, result.model_hash)


def present_hashes(trial: StudyRun) -> tuple[str, str]:
    """The hashes of a run's code and of its packaged model's weights, as they are now; the same for all seeds."""
    return _hashes(replace(trial, seed=0))


@cache
def _hashes(trial: StudyRun) -> tuple[str, str]:
    recipe = trial.recipe()
    return code_hash(recipe.method), packaged_weights(recipe.model)


@cache
def packaged_weights(model: str) -> str:
    """The hash of a packaged model's weights; empty for another model."""
    return fingerprint(find_model(model))[:16] if model in PACKAGED else ""


def measured_effect(method: str, reference: PaperReference, root: Path) -> EffectComparison | None:
    """The measurement of a method's stated effect, from stored results; None if there is none, or it is stale."""
    effect = reference.expected_effect
    comparison = compare(method, effect, read_results(root / RESULTS)) if effect else None
    return None if comparison is None or comparison.stale else comparison


def run_studies(methods: Sequence[str], root: Path) -> None:
    """Run the studies of methods in a separate process, which stores their results. `WorkerLost` if one fails."""
    paths = (str(root / "src"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "benchmarks.atlas", *methods]
    done = subprocess.run(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        fix = f"see the cause with: python -m benchmarks.atlas {' '.join(methods[:3])}"
        what = "a training run that measures a method's effect failed"
        raise WorkerLost(what, evidence=done.stderr[-2000:].strip(), fix=fix)


def read_results(path: Path) -> dict[StudyRun, StudyRunResult]:
    """Read the stored results by run, the last if there are several. Empty without the file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {result.trial: result for result in map(_result_of, lines)}


def _result_of(line: str) -> StudyRunResult:
    data = json.loads(line)
    trial = StudyRun(**{**data["trial"], "settings": tuple(data["trial"]["settings"])})
    metrics = {name: {int(i): x for i, x in points.items()} for name, points in data["metrics"].items()}
    return StudyRunResult(**{**data, "trial": trial, "metrics": metrics, "tokens": tuple(data["tokens"])})


def write_results(path: Path, results: Iterable[StudyRunResult]) -> None:
    """Write results in the order of their runs, one JSON line each; atomically, since a killed command is resumed."""
    ordered = sorted(results, key=lambda result: json.dumps(asdict(result.trial)))
    write_file(path, "".join(json.dumps(result.as_json()) + "\n" for result in ordered).encode())
