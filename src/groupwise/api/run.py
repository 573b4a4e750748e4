"""`Run`: a run directory as an object with metrics, samples, model and report."""

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from groupwise.api.evaluate import sample
from groupwise.api.export import export
from groupwise.api.metric_values import MetricValues
from groupwise.api.python_messages import from_python
from groupwise.config.user_code import Permissions
from groupwise.core import BadData, GroupwiseError, Usage
from groupwise.core.errors import Locked
from groupwise.data import ACCURACY, ACCURACY_GREEDY, EVAL_LOSS, MEAN_LENGTH, REWARD, SCORE, SCORE_GREEDY
from groupwise.inference.models_of_run import NO_CODE, At, find_run_model, model_directory
from groupwise.report.read_run import read
from groupwise.report.report import escaped, existing_run, write_report
from groupwise.report.run_warnings import find_warnings, headline
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.json_lines import read_lines
from groupwise.runs.phase_directories import runs_in
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import SAMPLE_FILES, RunLayout

__all__ = ["Report", "Run"]

SHOWN = (EVAL_LOSS, REWARD, ACCURACY_GREEDY, SCORE_GREEDY, ACCURACY, SCORE, MEAN_LENGTH)
"""The metrics that a notebook shows in a run's table."""


def _holder(directory: Path) -> str:
    """The process that is training a run, in words; empty if there is none."""
    try:
        RunLock(RunLayout(directory)).close()
    except GroupwiseError as error:
        return error.evidence if isinstance(error, Locked) else ""
    return ""


def _stop_reason(directory: Path) -> str:
    """Why a run, or its last started phase, ended early, from its files; empty if they do not say."""
    try:
        return RunInfo.read(RunLayout(runs_in(directory)[-1])).stopped
    except (GroupwiseError, OSError):
        return ""


@dataclass(frozen=True, slots=True)
class Report:
    """The HTML report page of a run. A notebook shows it in place."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="800"></iframe>'


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Run:
    """A run in its directory. Each property reads the files again, so it also works while the run trains.

    A directory may be named without its time, or by a pattern: `gw.Run("runs/first")` is the newest such run. A `Run`
    is a path: `gw.evaluate` and others take it as such. `stop_reason` is the reason of an early end, from the run's
    files; it is "" for a run that is complete or under way. A run of phases has a `Run` for each started phase in
    `phases`; its metrics and samples are from the last one, its model from the last finished one. `BadData` if the
    directory is no run.
    """

    directory: Path
    stop_reason: str
    _stop: Callable[[str], bool] = field(repr=False, compare=False)

    @from_python
    def __init__(
        self, directory: str | Path, stop_reason: str = "", _stop: Callable[[str], bool] = lambda cause: False
    ) -> None:
        path = existing_run(str(directory)).run_directory
        stop_reason = stop_reason or _stop_reason(path)
        for name, value in (("directory", path), ("stop_reason", stop_reason), ("_stop", _stop)):
            object.__setattr__(self, name, value)

    @property
    def phases(self) -> tuple["Run", ...]:
        """The started phases of a run, each as a `Run`, in order; empty for a run without phases."""
        return tuple(Run(path, _stop=self._stop) for path in runs_in(self.directory) if path != self.directory)

    @property
    def _last(self) -> Path:
        """The directory with the newest results: of the last started phase, or of a run without phases."""
        return runs_in(self.directory)[-1]

    @property
    @from_python
    def metrics(self) -> Mapping[str, MetricValues]:
        """The value of each metric by iteration: `run.metrics["reward"][20]`, and `[-1]` is the last one.

        NaN where it was not finite.
        """
        curves = read(self._last).metrics
        return {
            name: MetricValues(zip(curve.iterations.tolist(), curve.metric_values.tolist()))
            for name, curve in curves.items()
        }

    @property
    @from_python
    def done(self) -> int:
        """The number of completed iterations; in a run of phases, of its last started phase."""
        return read(self._last).last

    @property
    @from_python
    def iterations(self) -> int:
        """The planned number of iterations; in a run of phases, of the last started phase."""
        return RunInfo.read(RunLayout(self._last)).iterations

    @from_python
    def samples(self, iteration: int | None = None) -> list[dict[str, Any]]:
        """The samples of an iteration, one dict each, by default of the last one that has samples.

        Keys are as in a line of `samples/`: prompt, gold, text, outcome, score, reward, advantage, length and more.
        """
        layout = RunLayout(self._last)
        iterations = sorted(
            int(path.stem) for path in layout.samples.glob(f"*{SAMPLE_FILES[0]}") if path.stem.isdecimal()
        )
        chosen = iteration if iteration is not None else (iterations or [0])[-1]
        if chosen not in iterations:
            known = f"iterations {iterations[0]} to {iterations[-1]}" if iterations else "no iteration"
            raise BadData(f"{self.directory} has no samples of iteration {chosen}", evidence=f"it has {known}",
                          fix="pass an iteration with samples, or wait for one: run.samples(iteration)")  # fmt: skip
        return read_lines(layout.sample_file(chosen, SAMPLE_FILES[0]))

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    @from_python
    def model_dir(self) -> Path:
        """The directory of the trained model, in Hugging Face layout; of an unfinished run the newest checkpoint's.

        The latter is written to `models/` of the run on first use. `BadData` for a run without a checkpoint.
        """
        return model_directory(find_run_model(self.directory), NO_CODE, lambda line: None)

    def export(
        self,
        directory: str | PathLike[str],
        *,
        at: At = None,
        dtype: str = "",
        push: str = "",
        permissions: Permissions = Permissions(),  # noqa: B008
    ) -> Path:
        """Write the run's model to a new directory, as `gw.export` does."""
        return export(self, directory, at=at, dtype=dtype, push=push, permissions=permissions)

    @property
    @from_python
    def report(self) -> Report:
        """The report page of the run. Each access writes the file again."""
        return Report(write_report(runs_in(self.directory), RunLayout(self.directory).report))

    def sample(self, prompt: str, **settings: Any) -> str:
        """The trained model's greedy answer to a prompt. `gw.sample` has more options."""
        return sample(self, prompt, **settings)

    @from_python
    def stop(self, cause: str = "stopped by a callback") -> None:
        """Ask the training loop to save and end after this iteration, on the `Run` that `on_iteration` gets.

        Any thread may call it. `Usage` if this program is not training the run.
        """
        if not self._stop(cause):
            who = _holder(self.directory)
            fix = "end it there, by Ctrl-C or kill -TERM" if who else "call it in on_iteration"
            raise Usage(f"run.stop() cannot end {self.directory}", evidence=who or "it is not training", fix=fix)

    def __repr__(self) -> str:
        try:
            figures = headline(run := read(self._last), len(find_warnings(run)[0]))
        except GroupwiseError as error:  # a damaged run can be shown, too
            figures = error.what
        return f"<Run {self.directory}: {figures}{f'; {self.stop_reason}' if self.stop_reason else ''}>"

    def _repr_html_(self) -> str:
        run = read(self._last)
        rows = []
        for name in SHOWN:
            if name in run.metrics and len(values := run.metrics[name].finite.metric_values):
                first, last = (f"<td>{value:.3f}</td>" for value in (values[0], values[-1]))
                rows.append(f"<tr><th>{escaped(name)}</th>{first}{last}</tr>")
        end = f"; {self.stop_reason}" if self.stop_reason else ""
        title = f"<b>{escaped(str(self.directory))}</b>: {escaped(headline(run, len(find_warnings(run)[0])) + end)}"
        return f"<p>{title}</p><table><tr><th></th><th>first</th><th>last</th></tr>{''.join(rows)}</table>"
