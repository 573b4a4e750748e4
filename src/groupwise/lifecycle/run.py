"""Runs the loop of a run from its newest checkpoint or the start; then writes model and report."""

import asyncio
import contextlib
import math
import shlex
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from groupwise.cluster.rank_work_thread import interruptible
from groupwise.cluster.ray import reserved
from groupwise.config.recipe import Recipe
from groupwise.core import BadData, GroupwiseError, Storage, Usage
from groupwise.data import LOSS
from groupwise.engines import Fleet, without_pages
from groupwise.engines.native.speculation import SpeculativeEngine
from groupwise.learner import Learner
from groupwise.learner.update import policy_tensors, restore_policy
from groupwise.lifecycle.alerts import AlertDetector, trained_role_reasons
from groupwise.lifecycle.extend_run import park_model
from groupwise.lifecycle.final_message import closing_message, code_of, nothing_to_do
from groupwise.lifecycle.resume_checks import check_changes, device_changes, record_changes
from groupwise.lifecycle.run_handle import RunControl, RunEnding
from groupwise.lifecycle.sft_warm_start import remove_checkpoints, warm_start_run
from groupwise.models import Decoder, LayerWeights, Model, weights_device
from groupwise.report.report import write_report
from groupwise.rollout import RolloutBuffer
from groupwise.runs.atomic_writes import (
    DISK,
    PARKED,
    FileSystemOperations,
    delete_directory,
    remove_leftovers,
    storage_errors,
    write_directory,
)
from groupwise.runs.checkpoints import Checkpoint, finished_checkpoints, newest_checkpoint
from groupwise.runs.environment_reply_log import ReplyLogFile
from groupwise.runs.next_command import resume_command
from groupwise.runs.open_run import OpenRun
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs
from groupwise.tasks import Demonstrations
from groupwise.training.build_run import RunObjects
from groupwise.training.loop import run as loop
from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.rank_worker import RankRendezvous, rank_store, several_ranks
from groupwise.training.run_guards import RunGuards
from groupwise.training.run_recorder import RunRecorder
from groupwise.training.signal_watchdog import CODES, BlockedStop, SignalWatchdog, interrupt_handler_kept

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class IterationCallback:
    """Receives each iteration's metrics: prints their line and alerts, writes a due model, and tells the program.

    `failed_exports` gets the iterations whose model (`save.export_every`) cannot be written.
    """

    run_layout: RunLayout
    run_objects: RunObjects
    progress: ProgressPrinter
    alert_detector: AlertDetector
    run_control: RunControl
    file_system: FileSystemOperations
    failed_exports: list[int] = field(default_factory=list)

    def __call__(self, line: dict[str, Any], timing: dict[str, Any], learner: Learner) -> None:
        """Take the metrics and the timings of one iteration, after which the learner has these weights."""
        recipe, iteration = self.run_objects.recipe, line["iteration"]
        self.progress(line, timing)
        for alert in self.alert_detector(line):
            self.progress.notify(alert)
        if is_due(recipe.save.export_every, iteration, recipe.iterations):
            try:
                weights = None if self.run_objects.has_weights else gathered_policy(learner)
                model = self.run_layout.model_at(iteration)
                write_model_directory(self.run_layout, self.run_objects, model, self.file_system, weights)
            except Storage as error:
                self.failed_exports.append(iteration)
                self.progress.notify(str(error))
        self.run_control.on_iteration(self.run_layout.run_directory, line)


class WarmStartProgressCallback(IterationCallback):
    """As `IterationCallback`, for a warm start: it prints a line after each tenth of the steps, and nothing else."""

    __slots__ = ()

    def __call__(self, line: dict[str, Any], timing: dict[str, Any], learner: Learner) -> None:
        done, steps = line["iteration"], self.run_objects.recipe.iterations
        if done and (done == steps or done * 10 // steps > (done - 1) * 10 // steps):
            self.progress.notify(f"warm start {done:>{len(str(steps))}}/{steps}  loss {line[LOSS]:.4f}")


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """A run under way in this process, but for its learner, which copies the weights that the warm start leaves.

    `changes_since_last_open` are the lines about what changed since the run was last open.
    """

    run: OpenRun
    run_objects: RunObjects
    buffer: RolloutBuffer
    guards: RunGuards
    recorder: RunRecorder
    iteration_callback: IterationCallback
    watchdog: SignalWatchdog
    changes_since_last_open: Sequence[str]

    async def watched(self, work: Awaitable[T]) -> T:
        """Await `work`, which a signal or the calling program may end early."""
        with self.iteration_callback.run_control.of(self.recorder), self.watchdog:
            return await work


def run_from(
    run: OpenRun,
    objects: RunObjects,
    stop_after: float | None = None,
    *,
    strict: bool = False,
    changed: bool = False,
    control: RunControl | None = None,
    disk: FileSystemOperations = DISK,
) -> RunEnding:
    """Run the loop from the newest checkpoint or the start. Then write the report and, unless stopped, the model."""
    checkpoint = newest_checkpoint(run.layout, strict=strict)
    control = control or RunControl()
    progress = control.progress(objects.recipe.iterations, checkpoint.iteration if checkpoint else 0)
    progress.leading = LOSS if objects.recipe.trains_stored_answers else progress.leading
    progress.notify(f"run: {run.path}")
    if line := without_pages(objects.recipe.engine, objects.model):
        progress.notify(line)
    training = assembled(run, objects, checkpoint, progress, control, changed=changed, disk=disk)
    recorder = training.recorder
    learner = restored(training, checkpoint) if checkpoint else None
    for line in nothing_to_do(run.layout, objects, recorder) if checkpoint else ():
        progress.notify(line)
    try:
        watching = progress.watching(lambda: recorder.current_phase)
        kept, store = interrupt_handler_kept(), rank_store(objects.recipe, run.layout)
        with kept, reserved(objects.recipe), store as meeting, watching, asyncio.Runner() as runner:
            if stop_after is not None:
                runner.get_loop().call_later(stop_after, recorder.stop, "out of time")
            ready = recorder.done >= 0 or warmed_up(training, runner, stop_after, changed=changed)
            if ready and learner is None and not objects.recipe.cluster.sharded:
                learner = objects.new_learner()
            if ready:
                runner.run(training.watched(iterate(training, learner, meeting, checkpoint)))
    except (GroupwiseError, KeyboardInterrupt) as error:
        if isinstance(error, BlockedStop) and error.phase == "sample" and learner:  # such a phase has changed nothing
            recorder.save(learner, training.buffer, training.guards, last=True)
        report_error(training, error)
        if isinstance(error, BlockedStop):
            record_ending(training, error.cause)
            return RunEnding(error.cause, CODES.get(error.cause, 0))
        raise
    finally:
        progress.end()
        recorder.logs.close()
        for warning in recorder.logs.warnings:
            progress.notify(f"warning: {warning}")
    return ended(training)


def report_error(training: Training, error: BaseException) -> None:
    """After an error, write the report and print how to continue, unless the error says so itself."""
    run, recorder, notify = training.run, training.recorder, training.iteration_callback.progress.notify
    if not isinstance(error, Storage):
        with contextlib.suppress(OSError):
            notify(f"report: {write_report([run.path])}")
    command = resume_command(run.path, *code_of(training.run_objects.user_code))
    if recorder.done >= 0 and not (isinstance(error, Storage) and command in error.fix):
        notify(f"continue from the last checkpoint: {command}")


def ended(training: Training) -> RunEnding:
    """Write what is left to write. A signal that ends this prints how to continue: the checkpoint is complete."""
    try:
        return ending_of(training)
    except KeyboardInterrupt:
        command = resume_command(training.run.path, *code_of(training.run_objects.user_code))
        training.iteration_callback.progress.notify(f"continue from the last checkpoint: {command}")
        raise


def ending_of(training: Training) -> RunEnding:
    """Write the report and, unless the run was stopped, the model. Returns how the run ended."""
    layout, recorder, watch = training.run.layout, training.recorder, training.iteration_callback
    if recorder.done >= 0:
        remove_checkpoints(layout, watch.file_system)
    if not recorder.stopping:
        weights = None if training.run_objects.has_weights else saved_policy(layout, training.run_objects.model)
        write_model_directory(layout, training.run_objects, layout.model, watch.file_system, weights)
    with storage_errors("the report", layout.run_directory):
        report = write_report([layout.run_directory])
    check_models(layout, watch.failed_exports)
    record_ending(training, recorder.stopping)
    message = closing_message(layout, report, recorder, training.run_objects)
    return RunEnding(recorder.stopping, CODES.get(recorder.stopping, 0), message)


def record_ending(training: Training, stopped: str) -> None:
    """Write to run.json why the run ended early; a resume removes it."""
    training.run.changed(replace(training.run.info, stopped=stopped), disk=training.iteration_callback.file_system)


def assembled(
    run: OpenRun,
    objects: RunObjects,
    checkpoint: Checkpoint | None,
    progress: ProgressPrinter,
    control: RunControl,
    *,
    changed: bool,
    disk: FileSystemOperations,
    watch: type[IterationCallback] = IterationCallback,
) -> Training:
    """Open the logs of a run at its checkpoint, and assemble everything that the loop needs but the learner."""
    recipe, layout, engine = objects.recipe, run.layout, objects.engine
    state, done = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    for warning in checkpoint.skipped_checkpoint_warnings if checkpoint else ():
        progress.notify(f"warning: {warning}")
    moved = device_changes(run, objects, state)
    for line in moved:
        progress.notify(
            f"warning: {line}: the numbers of both differ by rounding; the dtype stays {recipe.machine.dtype}"
        )
    changes = [*check_changes(run, objects, state, accept=changed), *objects.user_code.accepted_changes, *moved]
    if recipe.iterations > run.info.iterations:
        park_model(layout, disk)
    trackers = {"trackers": recipe.trackers, "load": objects.user_code.find}
    logs = RunLogs.resume(layout, state, done, **trackers, changed=changed, notify=progress.notify, disk=disk)
    run, accepted = record_changes(run, objects, state, [*changes, *logs.changes], done, disk)
    if isinstance(engine, Fleet):
        engine.notify = progress.notify
        engine.keep_logs(layout.logs)
        progress.notify(engine.weights_way)
    if objects.rollout_setting.agent_runner is not None:
        objects.rollout_setting.agent_runner.output_directory = layout.agents
    guards = objects.new_guards()
    alerts = AlertDetector(guards.max_logprob_diff, trained_role_reasons(recipe.method), recipe.method)
    watching = watch(layout, objects, progress, alerts, control, disk)
    recorder = RunRecorder(
        layout, logs, keep=recipe.save.keep, best=recipe.evaluate.best_metric, extra=accepted, on_metrics=watching,
        engine_figures=engine.figures if isinstance(engine, Fleet | SpeculativeEngine) else dict,
        notify=progress.notify, decode=objects.tokenizer.decode, disk=disk,
        keeps_samples=not isinstance(recipe.task, Demonstrations),  # their source has them already
    )  # fmt: skip
    remove_later_models(layout, done, disk)
    with storage_errors("the checkpoints", layout.run_directory):
        remove_leftovers(layout.checkpoints, (), disk)
    replay = ReplyLogFile(layout, lambda: recorder.done, progress.notify, disk=disk)
    agent_deadline = math.inf if recipe.agent is None else recipe.agent.deadline
    deadlines = recipe.machine.verdict_deadline, agent_deadline
    watchdog = SignalWatchdog(recorder.stop, progress.notify, lambda: recorder.current_phase, *deadlines)
    return Training(run, objects, objects.new_buffer(replay), guards, recorder, watching, watchdog, changes)


def restored(training: Training, checkpoint: Checkpoint) -> Learner | None:
    """Restore learner, buffer and guards. A solved run continues if it was extended or changed.

    Returns the learner; None if it is sharded: the ranks restore it.
    """
    objects, guards, recorder = training.run_objects, training.guards, training.recorder
    with checkpoint_errors(training.run.layout, changed=bool(recorder.extra["changes"])):
        learner = None if objects.recipe.cluster.sharded else objects.new_learner()
        recorder.restore(checkpoint, learner, training.buffer, guards)
        if learner is None and objects.has_weights:
            restore_policy(objects.model, checkpoint.tensors())
    check_pending(objects.recipe, training.buffer)
    if guards.solved and training.changes_since_last_open:
        park_model(training.run.layout, training.iteration_callback.file_system)
        guards.forget_signal()
    recorder.solved = guards.solved
    return learner


def warmed_up(training: Training, runner: asyncio.Runner, stop_after: float | None, *, changed: bool) -> bool:
    """Run or continue the warm start, if the run has one. False if it was stopped, and saved, before its end.

    A killed one continues from its newest checkpoint, and reaches the bits of one that was never killed.
    """
    if (objects := training.run_objects.warm_start) is None:
        return True
    watch = training.iteration_callback
    with warm_start_run(training.run, objects, watch.file_system) as run:
        checkpoint = newest_checkpoint(run.layout)
        settings = {"changed": changed, "disk": watch.file_system, "watch": WarmStartProgressCallback}
        phase = assembled(run, objects, checkpoint, watch.progress, watch.run_control, **settings)
        if stop_after is not None:
            runner.get_loop().call_later(stop_after, phase.recorder.stop, "out of time")
        learner = restored(phase, checkpoint) if checkpoint else objects.new_learner()
        try:
            runner.run(phase.watched(iterate(phase, learner, None, checkpoint)))
        finally:
            phase.recorder.logs.close()
        if phase.recorder.stopping:
            training.recorder.stop(phase.recorder.stopping)
        return phase.recorder.done == objects.recipe.iterations


async def iterate(
    training: Training, learner: Learner | None, meeting: RankRendezvous | None, checkpoint: Checkpoint | None
) -> None:
    """Run the training loop, with the other ranks of the run, and save its last checkpoint."""
    objects, recorder, buffer, guards = training.run_objects, training.recorder, training.buffer, training.guards
    unfinished = recorder.done < objects.recipe.iterations and not (recorder.stopping or recorder.solved)
    if not (unfinished or recorder.done < 0):  # a stop before the first evaluation leaves a checkpoint of it
        return
    notify = training.iteration_callback.progress.notify
    with several_ranks(training.run.layout, objects, learner, meeting, checkpoint, notify) as learner:
        evaluate = partial(objects.evaluate, buffer.rollout_setting, learner)
        await loop(objects.recipe, buffer, objects.engine, learner, recorder, guards, evaluate)
        recorder.save(learner, buffer, guards, last=True)


@contextlib.contextmanager
def checkpoint_errors(layout: RunLayout, *, changed: bool) -> Iterator[None]:
    """Turn errors while a checkpoint is restored into `BadData`, if the recipe was changed and may no longer fit it."""
    try:
        yield
    except (AssertionError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if not changed:
            raise
        raise BadData(
            f"the checkpoint of {layout.run_directory} does not fit its changed recipe",
            evidence=f"{type(error).__name__}: {error}",
            fix="restore the old recipe.toml, or start a new run with this one",
        ) from error


def check_pending(recipe: Recipe, buffer: RolloutBuffer) -> None:
    """`Usage` if the checkpoint has more iterations that were sampled ahead than a changed `max_staleness` allows."""
    if (ahead := len(buffer.pending_iterations)) > recipe.cluster.max_staleness:
        raise Usage(
            f"cluster.max_staleness is {recipe.cluster.max_staleness}, but the checkpoint has samples of {ahead} later "
            "iterations",
            fix=f"set cluster.max_staleness to at least {ahead}, or start a new run",
        )


def write_model_directory(
    layout: RunLayout, objects: RunObjects, model: Path, disk: FileSystemOperations, weights: LayerWeights | None
) -> None:
    """Write the current model or adapter to a directory of the run, atomically.

    `weights` are those of a model that this process has not.
    """
    with storage_errors("the model", layout.run_directory):
        if not model.parent.is_dir():
            disk.mkdir(model.parent)
        remove_leftovers(model.parent, [model.with_name(model.name + PARKED)], disk)
        with write_directory(model, disk) as draft:
            objects.write(draft, weights)


def gathered_policy(learner: Learner) -> LayerWeights:
    """The policy's weights, gathered from the ranks a layer at a time. A signal ends the wait for one."""
    weights = learner.weights()
    assert isinstance(weights, LayerWeights), "a rank without a whole model gathers"
    return LayerWeights(weights.outline, lambda names: interruptible(partial(weights.read, names)))


def saved_policy(layout: RunLayout, model: Model) -> LayerWeights:
    """The policy's weights: the trained ones in the newest checkpoint, those under an adapter in the base's files."""
    checkpoint = newest_checkpoint(layout)
    assert checkpoint is not None, "a run saves a checkpoint before its model"
    assert isinstance(model, Decoder) and model.on_disk is not None, "another model has its weights"
    saved, base, outline = policy_tensors(checkpoint.tensors()), model.on_disk, model.state_dict()
    trained, device = frozenset(saved), weights_device(model)

    def read(name: str) -> Tensor:
        weight = saved[name] if name in trained else base.whole(name, len(outline[name]))
        return weight.to(device)  # a sum with an adapter has the bits of that device

    return LayerWeights(outline, lambda names: {name: read(name) for name in names})


def check_models(layout: RunLayout, unwritten: Sequence[int]) -> None:
    """`Storage` at the end of a run that is complete but for a model of `save.export_every`."""
    missing = [i for i in unwritten if not layout.model_at(i).is_dir()]
    if missing:
        saved = [i for i, _, _ in finished_checkpoints(layout.checkpoints) if i in missing]
        exports = [f"groupwise export {shlex.quote(str(layout.run_directory))} A_NEW_DIRECTORY --at {i}" for i in saved]
        raise Storage(
            f"the models of these iterations could not be written: {', '.join(map(str, missing))}",
            evidence=f"{layout.models} lacks them; everything else of the run is complete",
            fix="\n".join(exports) or "free space, and start a new run with the same recipe: it has the same models",
        )


def is_due(every: int, iteration: int, last: int) -> bool:
    """Whether to write a model of this iteration: every `every`-th one (0: none), but not the last."""
    return every > 0 and 0 < iteration < last and iteration % every == 0


def remove_later_models(layout: RunLayout, done: int, disk: FileSystemOperations) -> None:
    """Remove models of iterations after the checkpoint, which will be computed again, and unfinished directories."""
    home = layout.models
    with storage_errors("the models", layout.run_directory):
        remove_leftovers(home, home.glob(f"*{PARKED}"), disk)
        for path in sorted(home.glob("*")):
            if path.name.isdecimal() and int(path.name) > done:
                delete_directory(path, disk)
