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

from groupwise.cluster.launch import check_launch
from groupwise.config.devices import resolved
from groupwise.config.recipe import Recipe
from groupwise.config.text import read_recipe, write
from groupwise.config.user_code import Use
from groupwise.data import ACCURACY_GREEDY, INTERVALS, SCORE_GREEDY, BadData, GroupwiseError, Storage, Usage, raise_all
from groupwise.learner.update import restore_policy
from groupwise.models import find_model, stored_dtype
from groupwise.report.report import write_report
from groupwise.runs.checkpoints import Checkpoint, finished_checkpoints, newest_checkpoint
from groupwise.runs.disk import (
    DISK,
    PARKED,
    Disk,
    delete_directory,
    remove_leftovers,
    storage_errors,
    write_directory,
)
from groupwise.runs.info import RunInfo, start_run
from groupwise.runs.jsonl import read_lines
from groupwise.runs.layout import RunLayout
from groupwise.runs.logs import RunLogs
from groupwise.runs.next_command import evaluate_command, extend_command, resume_command
from groupwise.runs.replay import ReplayLog
from groupwise.training.about import describe_run
from groupwise.training.alerts import Alerts
from groupwise.training.build import Inputs, Runtime, build
from groupwise.training.check import check_inputs, dry_run
from groupwise.training.extend import extend, park_model
from groupwise.training.follower import rank_store, several_ranks
from groupwise.training.guards import PATIENCE
from groupwise.training.identity import (
    check_base,
    check_changes,
    check_data,
    check_given_models,
    check_model_code,
    data_record,
    device_changes,
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
    """How a run ended: exit code, last message, and `stopped`, the reason of an early end ("" without one)."""

    stopped: str
    code: int
    message: str = ""


class Control:
    """A program's handle on a run: it receives each iteration's metrics, and can stop the run from any thread.

    `on_iteration` gets the directory of the run, which may be a phase, and each line of metrics.
    """

    def __init__(self, on_iteration: Callable[[Path, dict[str, Any]], object] = lambda run, line: None) -> None:
        self.on_iteration = on_iteration
        self._cause = ""
        self._stop: Callable[[str], None] | None = None

    def stop(self, cause: str) -> None:
        """Request that the run saves a checkpoint and ends at the next safe point, or at once if it has not started."""
        self._cause = self._cause or cause
        if self._stop is not None:
            self._stop(cause)

    @contextlib.contextmanager
    def of(self, recorder: Recorder) -> Iterator[None]:
        """Connect `stop` to a running loop, for the duration of the context."""
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
    """Read and check the inputs of a run. Raises all errors of the recipe as one; `notify` gets notes for the user."""
    notes: list[str] = []
    inputs: list[Inputs] = []
    raise_all([*dry_run(recipe), *check_inputs(recipe, use, notes.append, receive=inputs.append)])
    for note in notes:
        notify(note)
    return inputs[0]


def begin(run: Path, ready: Runtime, use: Use, base: str, command: str) -> None:
    """Write run.json and recipe.toml, which make an empty directory a run. `base` names its published method."""
    text = write(ready.recipe)
    facts = data_record(ready) | ready.adapter | identity(ready.recipe, ready.inputs.templates, text)
    facts |= {"side_models": side_model_hashes(ready.recipe), "device": ready.device}
    start_run(run, describe_run(run, ready.recipe, base, use, command, facts), text)


def reopen(
    run: Path, use: Use, iterations: int | None = None, ranks: int | None = None, shard: str | None = None,
    launch: str | None = None,
) -> Runtime:  # fmt: skip
    """Build the objects of a run again, to continue it. `BadData` if its data or the files of its models have changed.

    `iterations` extends the run. `ranks`, `shard` and `launch` are those of `cluster` this time. `Storage` for a run
    that has results and no checkpoint to continue from.
    """
    check_continues(run)
    if iterations is not None:
        extend(run, iterations, use)
    recipe = read_recipe(RunLayout(run).recipe, (), use)
    recipe = with_ranks(recipe, ranks, shard, launch)
    check_launch(recipe)
    check_model_code(run, recipe, use)
    ready = build(recipe, use)
    check_data(run, ready)
    check_base(run, ready)
    check_given_models(run, recipe)
    return ready


def with_ranks(recipe: Recipe, ranks: int | None, shard: str | None, launch: str | None) -> Recipe:
    """The recipe of a run on other ranks. Its lanes stay; `InvalidValue` if the ranks do not divide them."""
    cluster = resolved(recipe).cluster
    chosen: dict[str, Any] = {"ranks": ranks, "shard": shard, "launch": launch}
    return replace(recipe, cluster=replace(cluster, **{name: x for name, x in chosen.items() if x is not None}))


def check_continues(run: Path) -> None:
    """Raise `Storage` if a run has results but no checkpoint to continue from: it would start from the beginning."""
    layout = RunLayout(run)
    if finished_checkpoints(layout.checkpoints):
        return
    done = max((line.get("iteration", 0) for line in read_lines(layout.metrics)), default=0)
    if done or layout.model.is_dir():
        raise Storage(
            f"{run} has no checkpoint to continue from",
            evidence=f"its metrics have {done} iterations, and {layout.checkpoints} has no checkpoint",
            fix=f"restore the checkpoints, or start a new run: groupwise train {shlex.quote(str(layout.recipe))}",
        )


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
    """Run the loop from the newest checkpoint or the start. Then write the report and, unless stopped, the model."""
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
        if is_due(recipe.save.model_every, line["iteration"], recipe.iterations):
            try:
                write_model_directory(run, ready, RunLayout(run).model_at(line["iteration"]), disk)
            except Storage as error:
                progress.say(str(error))
        control.on_iteration(run, line)

    for warning in checkpoint.warnings if checkpoint else ():
        progress.say(f"warning: {warning}")
    moved = device_changes(run, ready, state)
    for line in moved:
        progress.say(f"warning: {line}: the numbers of both differ by rounding; the dtype stays {recipe.machine.dtype}")
    lines = [*check_changes(run, ready, state, accept=changed), *ready.use.changes, *moved]
    if recipe.iterations > RunInfo.read(run).iterations:
        park_model(run, disk)
    sinks = {"sinks": recipe.sinks, "load": ready.use.find}
    logs = RunLogs.resume(run, state, done, **sinks, changed=changed, warn=progress.say, disk=disk)
    accepted = record_changes(run, ready, state, [*lines, *logs.changes], done, disk)
    recorder = Recorder(
        run, logs, keep=recipe.save.keep, best=recipe.evaluate.best, extra=accepted, on_metrics=watch,
        warn=progress.say, disk=disk,
    )  # fmt: skip
    remove_later_models(run, done, disk)
    replay = ReplayLog(run, lambda: recorder.done, progress.say, disk=disk)
    ready.buffer.setting = replace(ready.buffer.setting, replay=replay)
    if checkpoint:
        with checkpoint_errors(run, changed=bool(accepted["changes"])):
            learner = None if recipe.cluster.sharded else ready.start_learner()
            recorder.restore(checkpoint, learner, ready.buffer, ready.guards)
            if learner is None:
                restore_policy(ready.model, checkpoint.tensors())
        check_pending(ready)
        if ready.guards.solved and lines:  # an extended or changed run goes on
            park_model(run, disk)
            ready.guards.forget_signal()
        recorder.solved = ready.guards.solved
        for line in nothing_to_do(run, ready, recorder):
            progress.say(line)
    try:
        phase = partial(warm_start, run, ready, lambda: recorder.stopping, progress.say, changed=changed, disk=disk)
        asyncio.run(run_loop(run, recorder, ready, stop_after, phase, progress.say, control, checkpoint))
    except (GroupwiseError, KeyboardInterrupt) as error:
        aborted = isinstance(error, Stuck) and error.phase == "sample"  # such a phase has changed nothing
        if aborted and not recipe.cluster.sharded:  # the ranks that hold the shards have ended
            recorder.save(ready.learner, ready.buffer, ready.guards, last=True)
        if not isinstance(error, Storage):
            with contextlib.suppress(OSError):
                progress.say(f"report: {write_report([run])}")
            if recorder.done >= 0:
                progress.say(f"continue from the last checkpoint: {resume_command(run, *code_of(ready.use))}")
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
        write_model_directory(run, ready, RunLayout(run).model, disk)
    with storage_errors("the report", run):
        report = write_report([run])
    message = closing_message(run, report, recorder, ready)
    return Ending(recorder.stopping, CODES.get(recorder.stopping, 0), message)


@contextlib.contextmanager
def checkpoint_errors(run: Path, *, changed: bool) -> Iterator[None]:
    """Turn errors while a checkpoint is restored into `BadData`, if the recipe was changed and may no longer fit it."""
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


def write_model_directory(run: Path, ready: Runtime, model: Path, disk: Disk) -> None:
    """Write the current model or adapter to a directory of the run, atomically."""
    with storage_errors("the model", run):
        if not model.parent.is_dir():
            disk.mkdir(model.parent)
        remove_leftovers(model.parent, [model.with_name(model.name + PARKED)], disk)
        with write_directory(model, disk) as draft:
            ready.write(draft)


def is_due(every: int, iteration: int, last: int) -> bool:
    """Whether to write a model of this iteration: every `every`-th one (0: none), but not the last."""
    return every > 0 and 0 < iteration < last and iteration % every == 0


def remove_later_models(run: Path, done: int, disk: Disk) -> None:
    """Remove models of iterations after the checkpoint, which will be computed again, and unfinished directories."""
    home = RunLayout(run).models
    with storage_errors("the models", run):
        remove_leftovers(home, home.glob(f"*{PARKED}"), disk)
        for path in sorted(home.glob("*")):
            if path.name.isdecimal() and int(path.name) > done:
                delete_directory(path, disk)


async def run_loop(
    run: Path,
    recorder: Recorder,
    ready: Runtime,
    stop_after: float | None,
    begin: Callable[[], Awaitable[bool]],
    say: Callable[[str], None],
    control: Control,
    checkpoint: Checkpoint | None,
) -> None:
    """Run the warm start and the training loop. A signal or `stop_after` ends them early, a second signal at once."""
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, recorder.stop, "out of time")
    deadline = ready.recipe.machine.verdict_deadline
    watchdog = Watchdog(recorder.stop, say, lambda: recorder.current_phase, deadline)
    with control.of(recorder), watchdog, rank_store(ready.recipe, run) as store:
        if recorder.done < 0:
            if not await begin():
                return
            if not ready.recipe.cluster.sharded:
                ready.start_learner()
        unfinished = recorder.done < ready.recipe.iterations and not (recorder.stopping or recorder.solved)
        if not (unfinished or recorder.done < 0):  # a stop before the first evaluation leaves a checkpoint of it
            return
        with several_ranks(ready, store, checkpoint):
            await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, recorder, ready.guards, ready.evaluate)
            recorder.save(ready.learner, ready.buffer, ready.guards, last=True)


def check_pending(ready: Runtime) -> None:
    """`Usage` if the checkpoint has more iterations that were sampled ahead than a changed `cluster.lag` allows."""
    if (ahead := len(ready.buffer.pending)) > ready.recipe.cluster.lag:
        raise Usage(
            f"cluster.lag is {ready.recipe.cluster.lag}, but the checkpoint has samples of {ahead} later iterations",
            fix=f"set cluster.lag to at least {ahead}, or start a new run",
        )


def nothing_to_do(run: Path, ready: Runtime, recorder: Recorder) -> list[str]:
    """The message that there is nothing to resume, if the run is finished; else empty."""
    iterations = ready.recipe.iterations
    count = f"{recorder.done} of {iterations} iterations"
    if recorder.solved and recorder.done < iterations:
        command = extend_command(run, 2 * iterations, *code_of(ready.use))
        return [f"nothing to do: the task is solved, after {count}", f"train on nevertheless: {command}"]
    return [f"nothing to do: {count} are done"] if recorder.done >= iterations else []


def code_of(use: Use) -> tuple[str, tuple[str, ...]]:
    """The command-line options for the code of a run, and the names of its functions in memory."""
    return use.options, tuple(use.in_memory)


def closing_message(run: Path, report: Path, recorder: Recorder, ready: Runtime) -> str:
    """The last output of a run: held-out accuracy and score, paths, and the next command."""
    recipe = ready.recipe
    if recorder.stopping:
        status = f"{recorder.stopping} after {recorder.done} of {recipe.iterations} iterations; saved."
        if recorder.done < 0:
            status = f"{recorder.stopping} during the warm start; saved."
        command = resume_command(run, *code_of(ready.use))
        return f"{status}{held_out_summary(run)}\n  report: {report}\n  continue: {command}"
    status = f"done: {recipe.iterations} iterations"
    if recorder.solved:
        count = f"{recorder.done} of {recipe.iterations} iterations"
        status = f"solved: every answer of the last {PATIENCE} iterations is correct, after {count}"
    model, name = f"{RunLayout(run).model}{dtype_note(recipe)}", shlex.quote(str(run))
    evaluate = evaluate_command(run, *code_of(ready.use))
    return (
        f"{status}{held_out_summary(run)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    {evaluate}\n          groupwise report {name} ANOTHER_RUN"
    )


def dtype_note(recipe: Recipe) -> str:
    """A note on the dtype of the trained weights, if the model that the run started from has another."""
    if recipe.lora is not None:
        return ""
    source = str(stored_dtype(find_model(recipe.model))).removeprefix("torch.")
    return "" if source == recipe.machine.dtype else f"  ({recipe.machine.dtype}; its source is {source})"


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
