"""Runs that measure whether a method has the effect that its paper states: their recipes and their stored results.

`make atlas` makes the runs of a plan (`effect_plans.py`) and stores them; `effect_comparisons.py` compares them.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from groupwise.certificates.code_hash import code_hash
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.recipe_toml import read_with_problems
from groupwise.core import WorkerLost
from groupwise.models import find_model, fingerprint
from groupwise.models.model_directories import PACKAGED
from groupwise.runs.atomic_writes import write_file

SIZES = (
    "prompts = 8", "iterations = 20", "method.group_size = 8", "method.minibatches = 2", "evaluate.every = 0",
    "evaluate.problems = 128", "save.every = 0",
)  # fmt: skip
"""The recipe fields that all studies set, such as sizes."""
HELD_OUT = "eval/"
"""The prefix of held-out metrics."""
RESULTS = Path("benchmarks/atlas/results.jsonl")
"""The file with the stored results of studies, in the repository."""


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study: a method on the packaged recipe of a task, with `settings` as in `ExpectedEffect`.

    `base` is the number of the first model: 0 is the packaged model, with its warm start.

    >>> StudyRun("gspo", "calculator", 1, ("prompts = 4",)).recipe().prompts
    4
    """

    method: str
    task: str
    seed: int
    settings: tuple[str, ...] = ()
    base: int = 0

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

    A run that collapsed, so that it ended with an error of its training, has neither metrics nor tokens. `cpu_seconds`
    are those of all processes of the run. `recipe_hash`, `code_hash` and `model_hash` are the hashes of the recipe, of
    the method's code, and of the weights of a packaged model; empty for another model.
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

    def at_tokens(self, metric: str, tokens: int) -> float:
        """A metric when so many tokens were generated: a held-out one linear between two evaluations.

        Others are the mean over the second half of the iterations within these tokens.
        """
        if not metric.startswith(HELD_OUT):
            return self.value(metric, self.iterations_within(tokens))
        points = [(sum(self.tokens[:i]), x) for i, x in sorted(self.metrics.get(metric, {}).items())]
        for (left, x), (right, y) in pairwise(points):
            if left <= tokens <= right:
                return x + (y - x) * (tokens - left) / (right - left)
        return points[-1][1] if points and points[-1][0] <= tokens else math.nan

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
