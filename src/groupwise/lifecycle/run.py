"""Runs the loop of a run from its newest checkpoint or the start; then writes model and report."""

import asyncio
import contextlib
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.core import BadData, GroupwiseError, Storage, Usage
from groupwise.engines import Fleet
from groupwise.engines.native.speculation import SpeculativeEngine
from groupwise.learner.update import restore_policy
from groupwise.lifecycle.alerts import Alerts, trained_role_reasons
from groupwise.lifecycle.extend import park_model
from groupwise.lifecycle.final_message import closing_message, code_of, nothing_to_do
from groupwise.lifecycle.resume_checks import check_changes, device_changes, record_changes
from groupwise.lifecycle.run_handle import Control, Ending
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
from groupwise.runs.info import RunInfo
from groupwise.runs.layout import RunLayout
from groupwise.runs.logs import RunLogs
from groupwise.runs.next_command import resume_command
from groupwise.runs.replay import ReplayLog
from groupwise.training.build import Runtime
from groupwise.training.loop import run as loop
from groupwise.training.progress import Progress
from groupwise.training.rank_worker import rank_store, several_ranks
from groupwise.training.recorder import Recorder
from groupwise.training.warm_start import remove_checkpoint, warm_start
from groupwise.training.watchdog import CODES, Stuck, Watchdog


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
    progress = Progress(recipe.iterations, checkpoint.iteration if checkpoint else 0)
    progress.say(f"run: {run}")
    unwritten: list[int] = []
    recorder, changes = open_recorder(run, ready, checkpoint, progress, control, unwritten, changed=changed, disk=disk)
    replay = ReplayLog(run, lambda: recorder.done, progress.say, disk=disk)
    ready.buffer.setting = replace(ready.buffer.setting, replay=replay)
    if checkpoint:
        restore(run, ready, checkpoint, recorder, changes, disk)
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
        command = resume_command(run, *code_of(ready.use))
        if recorder.done >= 0 and not (isinstance(error, Storage) and command in error.fix):
            progress.say(f"continue from the last checkpoint: {command}")
        if isinstance(error, Stuck):
            return Ending(error.cause, CODES.get(error.cause, 0))
        raise
    finally:
        progress.end()
        recorder.logs.close()
        for warning in recorder.logs.warnings:
            progress.say(f"warning: {warning}")
    if recorder.done >= 0:
        remove_checkpoint(run, disk)
    if not recorder.stopping:
        write_model_directory(run, ready, RunLayout(run).model, disk)
    with storage_errors("the report", run):
        report = write_report([run])
    check_models(run, unwritten)
    message = closing_message(run, report, recorder, ready)
    return Ending(recorder.stopping, CODES.get(recorder.stopping, 0), message)


def open_recorder(
    run: Path,
    ready: Runtime,
    checkpoint: Checkpoint | None,
    progress: Progress,
    control: Control,
    unwritten: list[int],
    *,
    changed: bool,
    disk: Disk,
) -> tuple[Recorder, list[str]]:
    """Open the logs of a run at its checkpoint. Returns their recorder, and what changed since it was last open.

    `unwritten` gets the iterations whose model (`save.export_every`) cannot be written.
    """
    recipe = ready.recipe
    state, done = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    for warning in checkpoint.warnings if checkpoint else ():
        progress.say(f"warning: {warning}")
    moved = device_changes(run, ready, state)
    for line in moved:
        progress.say(f"warning: {line}: the numbers of both differ by rounding; the dtype stays {recipe.machine.dtype}")
    changes = [*check_changes(run, ready, state, accept=changed), *ready.use.changes, *moved]
    if recipe.iterations > RunInfo.read(run).iterations:
        park_model(run, disk)
    trackers = {"trackers": recipe.trackers, "load": ready.use.find}
    logs = RunLogs.resume(run, state, done, **trackers, changed=changed, warn=progress.say, disk=disk)
    accepted = record_changes(run, ready, state, [*changes, *logs.changes], done, disk)
    engine = {}
    if isinstance(ready.engine, Fleet):
        ready.engine.warn = progress.say
        ready.engine.keep_logs(RunLayout(run).logs)
    if isinstance(ready.engine, Fleet | SpeculativeEngine):
        engine = {"engine_figures": ready.engine.figures}
    alerts = Alerts(ready.guards.max_logprob_diff, trained_role_reasons(recipe.method))
    watch = partial(watch_iteration, run, ready, progress, alerts, control, unwritten, disk)
    recorder = Recorder(
        run, logs, keep=recipe.save.keep, best=recipe.evaluate.best_metric, extra=accepted, on_metrics=watch,
        warn=progress.say, decode=ready.tokenizer.decode, disk=disk, **engine,
    )  # fmt: skip
    remove_later_models(run, done, disk)
    with storage_errors("the checkpoints", run):
        remove_leftovers(RunLayout(run).checkpoints, (), disk)
    return recorder, changes


def watch_iteration(
    run: Path,
    ready: Runtime,
    progress: Progress,
    alerts: Alerts,
    control: Control,
    unwritten: list[int],
    disk: Disk,
    line: dict[str, Any],
    timing: dict[str, Any],
) -> None:
    """Print an iteration's line and alerts, write its model if one is due, and hand it to the program that asked.

    `unwritten` gets the iteration if its model cannot be written.
    """
    progress(line, timing)
    for alert in alerts(line):
        progress.say(alert)
    if is_due(ready.recipe.save.export_every, line["iteration"], ready.recipe.iterations):
        try:
            write_model_directory(run, ready, RunLayout(run).model_at(line["iteration"]), disk)
        except Storage as error:
            unwritten.append(line["iteration"])
            progress.say(str(error))
    control.on_iteration(run, line)


def restore(
    run: Path, ready: Runtime, checkpoint: Checkpoint, recorder: Recorder, changes: Sequence[str], disk: Disk
) -> None:
    """Restore learner, buffer and guards. A solved run continues if it was extended or changed."""
    with checkpoint_errors(run, changed=bool(recorder.extra["changes"])):
        learner = None if ready.recipe.cluster.sharded else ready.start_learner()
        recorder.restore(checkpoint, learner, ready.buffer, ready.guards)
        if learner is None:
            restore_policy(ready.model, checkpoint.tensors())
    check_pending(ready)
    if ready.guards.solved and changes:
        park_model(run, disk)
        ready.guards.forget_signal()
    recorder.solved = ready.guards.solved


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


def check_pending(ready: Runtime) -> None:
    """`Usage` if the checkpoint has more iterations that were sampled ahead than a changed `cluster.max_staleness` allows."""
    if (ahead := len(ready.buffer.pending)) > ready.recipe.cluster.max_staleness:
        raise Usage(
            f"cluster.max_staleness is {ready.recipe.cluster.max_staleness}, but the checkpoint has samples of {ahead} later iterations",
            fix=f"set cluster.max_staleness to at least {ahead}, or start a new run",
        )


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
        with several_ranks(run, ready, store, checkpoint, say):
            await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, recorder, ready.guards, ready.evaluate)
            recorder.save(ready.learner, ready.buffer, ready.guards, last=True)


def write_model_directory(run: Path, ready: Runtime, model: Path, disk: Disk) -> None:
    """Write the current model or adapter to a directory of the run, atomically."""
    with storage_errors("the model", run):
        if not model.parent.is_dir():
            disk.mkdir(model.parent)
        remove_leftovers(model.parent, [model.with_name(model.name + PARKED)], disk)
        with write_directory(model, disk) as draft:
            ready.write(draft)


def check_models(run: Path, unwritten: Sequence[int]) -> None:
    """`Storage` at the end of a run that is complete but for a model of `save.export_every`."""
    layout = RunLayout(run)
    missing = [i for i in unwritten if not layout.model_at(i).is_dir()]
    if missing:
        saved = [i for i, _, _ in finished_checkpoints(layout.checkpoints) if i in missing]
        exports = [f"groupwise export {shlex.quote(str(run))} A_NEW_DIRECTORY --at {i}" for i in saved]
        raise Storage(
            f"the models of these iterations could not be written: {', '.join(map(str, missing))}",
            evidence=f"{layout.models} lacks them; everything else of the run is complete",
            fix="\n".join(exports) or "free space, and start a new run with the same recipe: it has the same models",
        )


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
