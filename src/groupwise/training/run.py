"""Starts a run in its directory, or continues it: checks, loop, model and report."""

import asyncio
import contextlib
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.config.text import read_recipe, write
from groupwise.config.user_code import Use
from groupwise.data import ACCURACY_GREEDY, INTERVALS, SCORE_GREEDY, BadData, GroupwiseError, Storage, raise_all
from groupwise.report.report import write_report
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.disk import DISK, PARKED, Disk, remove_leftovers, storage_errors, write_directory
from groupwise.runs.info import start_run
from groupwise.runs.jsonl import read_lines
from groupwise.runs.layout import RunLayout
from groupwise.runs.logs import RunLogs
from groupwise.runs.phases import whole_run
from groupwise.runs.replay import ReplayLog
from groupwise.training.about import describe_run
from groupwise.training.alerts import Alerts
from groupwise.training.build import Inputs, Runtime, build
from groupwise.training.check import check_inputs, dry_run
from groupwise.training.guards import PATIENCE
from groupwise.training.identity import (
    check_base,
    check_changes,
    check_data,
    check_given_models,
    check_model_code,
    data_record,
    identity,
    record_changes,
    side_model_hashes,
)
from groupwise.training.loop import run as loop
from groupwise.training.progress import Progress
from groupwise.training.recorder import Recorder
from groupwise.training.warm_start import remove_checkpoint, warm_start
from groupwise.training.watchdog import CODES, Stuck, Watchdog


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: its exit code, and its last message. `stopped` is the reason of an early end, or ""."""

    stopped: str
    code: int
    message: str = ""


class Control:
    """Lets a program watch a run and stop it, from a callback or from another thread.

    `on_iteration` gets each line of metrics.
    """

    def __init__(self, on_iteration: Callable[[dict[str, Any]], object] = lambda line: None) -> None:
        self.on_iteration = on_iteration
        self._cause = ""
        self._stop: Callable[[str], None] | None = None

    def stop(self, cause: str) -> None:
        """Request that the run saves and ends after the present iteration; before its start, at once."""
        self._cause = self._cause or cause
        if self._stop is not None:
            self._stop(cause)

    @contextlib.contextmanager
    def of(self, recorder: Recorder) -> Iterator[None]:
        """The time in which `stop` reaches the recorder of the running loop."""
        running = asyncio.get_running_loop()
        self._stop = lambda cause: running.call_soon_threadsafe(recorder.stop, cause) and None
        try:
            if self._cause:
                recorder.stop(self._cause)
            yield
        finally:
            self._stop = None


def directory_name(task: str) -> str:
    """A task's name as part of a directory name.

    >>> directory_name("datasets:openai/gsm8k:main@train"), directory_name("data/sums.v2.jsonl")
    ('gsm8k-main', 'sums.v2')
    """
    return re.sub(r"[^\w.-]+", "-", Path(task.partition("@")[0]).stem).strip("-")


def read_checked(recipe: Recipe, use: Use, notify: Callable[[str], None]) -> Inputs:
    """The inputs of a run, read and checked. Raises all errors of the recipe as one; notes go to `notify`."""
    notes: list[str] = []
    inputs: list[Inputs] = []
    raise_all([*dry_run(recipe), *check_inputs(recipe, use, notes.append, receive=inputs.append)])
    for note in notes:
        notify(note)
    return inputs[0]


def begin(run: Path, ready: Runtime, use: Use, base: str, command: str) -> None:
    """Write run.json and recipe.toml, which make an empty directory a run. `base` is the recipe's published method."""
    text = write(ready.recipe)
    facts = data_record(ready) | ready.adapter | identity(ready.recipe, ready.inputs.templates, text)
    facts |= {"side_models": side_model_hashes(ready.recipe)}
    start_run(run, describe_run(run, ready.recipe, base, use, command, facts), text)


def reopen(run: Path, use: Use) -> Runtime:
    """Build the objects of a run from its recipe. `BadData` if data, side models, base or model code have changed."""
    recipe = read_recipe(RunLayout(run).recipe, (), use)
    check_model_code(run, recipe, use)
    ready = build(recipe, use)
    check_data(run, ready)
    check_base(run, ready)
    check_given_models(run, recipe)
    return ready


def run_from(
    run: Path,
    ready: Runtime,
    stop_after: float | None = None,
    *,
    strict: bool = False,
    changed: bool = False,
    control: Control | None = None,
    disk: Disk = DISK,
) -> Ending:
    """Run the loop from the newest checkpoint (or from the start), then write the model and the report."""
    recipe, control = ready.recipe, control or Control()
    checkpoint = newest_checkpoint(run, strict=strict)
    state, done = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    progress = Progress(recipe.iterations, done)
    progress.say(f"run: {run}")

    alerts = Alerts(ready.guards.max_gap)

    def watch(line: dict[str, Any], timing: dict[str, Any]) -> None:
        progress(line, timing)
        for alert in alerts(line):
            progress.say(alert)
        control.on_iteration(line)

    for warning in checkpoint.warnings if checkpoint else ():
        progress.say(f"warning: {warning}")
    lines = [*check_changes(run, ready, state, accept=changed), *ready.use.changes]
    sinks = {"sinks": recipe.sinks, "load": ready.use.find}
    logs = RunLogs.resume(run, state, done, **sinks, changed=changed, warn=progress.say, disk=disk)
    accepted = record_changes(run, ready, state, [*lines, *logs.changes], done, disk)
    recorder = Recorder(
        run, logs, keep=recipe.save.keep, extra=accepted, on_metrics=watch, warn=progress.say, disk=disk
    )  # fmt: skip
    replay = ReplayLog(run, lambda: recorder.done, progress.say, disk=disk)
    ready.buffer.setting = replace(ready.buffer.setting, replay=replay)
    if checkpoint:
        with checkpoint_errors(run, changed=bool(accepted["changes"])):
            recorder.restore(checkpoint, ready.start_learner(), ready.buffer, ready.guards)
        if recorder.done >= recipe.iterations:
            progress.say(f"nothing to do: {recorder.done} of {recipe.iterations} iterations are done")
    try:
        phase = partial(warm_start, run, ready, lambda: recorder.stopping, progress.say, changed=changed, disk=disk)
        asyncio.run(run_loop(recorder, ready, stop_after, phase, progress.say, control))
    except (GroupwiseError, KeyboardInterrupt) as error:
        if isinstance(error, Stuck) and error.phase == "sample":  # an aborted sampling phase has changed nothing
            recorder.save(ready.learner, ready.buffer, ready.guards, last=True)
        if not isinstance(error, Storage):
            with contextlib.suppress(OSError):
                progress.say(f"report: {write_report([run])}")
            if recorder.done >= 0:
                progress.say(f"continue from the last checkpoint: {resume_command(run, ready.use)}")
        if isinstance(error, Stuck):
            return Ending(error.cause, CODES[error.cause])
        raise
    finally:
        progress.end()
        logs.close()
        for warning in logs.warnings:
            progress.say(f"warning: {warning}")
    if recorder.done >= 0:
        remove_checkpoint(run, disk)
    if not recorder.stopping:
        write_model_directory(run, ready, disk)
    with storage_errors("the report", run):
        report = write_report([run])
    message = closing_message(run, report, recorder, ready)
    return Ending(recorder.stopping, CODES.get(recorder.stopping, 0), message)


@contextlib.contextmanager
def checkpoint_errors(run: Path, *, changed: bool) -> Iterator[None]:
    """Raise `BadData` if a checkpoint does not fit its changed recipe, for example with another set of models."""
    try:
        yield
    except (AssertionError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if not changed:
            raise
        raise BadData(
            f"the checkpoint of {run} does not fit its changed recipe",
            evidence=f"{type(error).__name__}: {error}",
            fix="restore the old recipe.toml, or start a new run with this one",
        ) from error


def write_model_directory(run: Path, ready: Runtime, disk: Disk) -> None:
    """Write the trained model or adapter to `<run>/model`, atomically."""
    model = RunLayout(run).model
    with storage_errors("the model", run):
        remove_leftovers(run, [model.with_name(model.name + PARKED)], disk)
        with write_directory(model, disk) as draft:
            ready.write(draft)


async def run_loop(
    recorder: Recorder,
    ready: Runtime,
    stop_after: float | None,
    begin: Callable[[], Awaitable[bool]],
    say: Callable[[str], None],
    control: Control,
) -> None:
    """Run `begin` (the warm start) and the loop. A signal or `stop_after` ends them early; a second signal at once."""
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, recorder.stop, "out of time")
    deadline = ready.recipe.machine.verdict_deadline
    with control.of(recorder), Watchdog(recorder.stop, say, lambda: recorder.current_phase, deadline):
        if recorder.done < 0:
            if not await begin():
                return
            ready.start_learner()
        await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, recorder, ready.guards, ready.evaluate)
        recorder.save(ready.learner, ready.buffer, ready.guards, last=True)


def resume_command(run: Path, use: Use) -> str:
    """The whole command that continues a run."""
    return f"groupwise resume {shlex.quote(str(whole_run(run)))}{use.options}"


def closing_message(run: Path, report: Path, recorder: Recorder, ready: Runtime) -> str:
    """The last output of a run: held-out figures, paths, and the next command."""
    recipe = ready.recipe
    if recorder.stopping:
        status = f"{recorder.stopping} after {recorder.done} of {recipe.iterations} iterations; saved."
        if recorder.done < 0:
            status = f"{recorder.stopping} during the warm start; saved."
        command = resume_command(run, ready.use)
        return f"{status}{held_out_summary(run)}\n  report: {report}\n  continue: {command}"
    model, name = RunLayout(run).model, shlex.quote(str(run))
    status = f"done: {recipe.iterations} iterations"
    if recorder.solved:
        status = f"solved: every answer of the last {PATIENCE} iterations is correct, after {recorder.done} iterations"
    return (
        f"{status}{held_out_summary(run)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    groupwise eval {name} --samples 8\n          groupwise report {name} ANOTHER_RUN"
    )


def held_out_summary(run: Path) -> str:
    """The first and the last held-out greedy accuracy and score in a run's metrics; empty without evaluations."""
    lines, summary = list(read_lines(RunLayout(run).metrics)), ""
    for word, metric in (("greedy", ACCURACY_GREEDY), ("greedy score", SCORE_GREEDY)):
        if not (evaluated := [line for line in lines if metric in line]):
            continue
        first, last = (line[metric] for line in (evaluated[0], evaluated[-1]))
        low, high = (evaluated[-1][name] for name in INTERVALS[metric])
        before = f"{first:.3f} -> " if len(evaluated) > 1 else ""
        summary += f"\n  held-out {word} {before}{last:.3f}  (95 % interval {low:.3f} .. {high:.3f})"
    return summary
