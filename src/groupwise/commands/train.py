"""`groupwise train` and `groupwise resume`: start or continue a run."""

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from groupwise.commands.check import check_inputs, dry_run
from groupwise.config import text
from groupwise.config.recipe import Recipe
from groupwise.config.text import base_of, read_recipe, write
from groupwise.config.user_code import load_use
from groupwise.data import (
    ACCURACY_GREEDY,
    INTERVALS,
    BadData,
    GroupwiseError,
    Storage,
    notices_of,
    visible,
)
from groupwise.report.report import existing_run, write_report
from groupwise.runs.checkpoints import RunLock, newest_checkpoint, run_directory
from groupwise.runs.disk import DISK, PARKED, Disk, remove_leftovers, storage_errors, write_directory
from groupwise.runs.info import RunInfo, start_run
from groupwise.runs.jsonl import read_lines
from groupwise.runs.layout import RunLayout
from groupwise.runs.logs import RunLogs
from groupwise.runs.replay import ReplayLog
from groupwise.training.about import describe_run
from groupwise.training.build import Inputs, Runtime, build
from groupwise.training.identity import (
    check_base,
    check_changes,
    check_data,
    check_model_code,
    data_record,
    identity,
    record_changes,
)
from groupwise.training.loop import run as loop
from groupwise.training.progress import Progress
from groupwise.training.recorder import Recorder
from groupwise.training.warm_start import remove_checkpoint, warm_start
from groupwise.training.watchdog import CODES, Stuck, Watchdog

DEFAULT = Path(text.__file__).with_name("default.toml")
"""The packaged recipe."""


def train(
    recipe_path: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    out: str = "runs",
    name: str | None = None,
    stop_after: float | None = None,
    command: str = "",
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Start a run of a recipe, by default the packaged one. Returns the exit code."""
    loaded = load_use(
        use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code, keys=keys, judges=judges
    )
    path = Path(recipe_path) if recipe_path else DEFAULT
    recipe = read_recipe(path, overrides, loaded)
    notes: list[str] = []
    inputs: list[Inputs] = []
    raise_all([*dry_run(recipe), *check_inputs(recipe, loaded, notes.append, receive=inputs.append)])
    print_notes(notes)
    ready = build(recipe, loaded, *inputs)
    run = run_directory(Path(out), name or (path.stem if recipe_path else directory_name(recipe.task)))
    with RunLock(run):
        text = write(recipe)
        facts = data_record(ready) | ready.adapter | identity(recipe, ready.tokenizer, text)
        start_run(run, describe_run(run, recipe, base_of(path, overrides), loaded, command, facts), text)
        return run_from(run, ready, stop_after)


def directory_name(task: str) -> str:
    """A task's name as part of a directory name.

    >>> directory_name("datasets:openai/gsm8k:main@train"), directory_name("data/sums.v2.jsonl")
    ('gsm8k-main', 'sums.v2')
    """
    return re.sub(r"[^\w.-]+", "-", Path(task.partition("@")[0]).stem).strip("-")


def print_notes(lines: Sequence[str]) -> None:
    """Print lines to stderr, as the run's progress does."""
    for line in lines:
        print(visible(line), file=sys.stderr, flush=True)


def raise_all(problems: Sequence[GroupwiseError]) -> None:
    """Raise all errors as one, of the first error's type (which sets the exit code). No errors: do nothing."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise type(problems[0])(f"{len(problems)} errors", evidence="\n".join(map(str, problems)))


def resume(
    run: str,
    use: Sequence[str] = (),
    *,
    strict: bool = False,
    changed: bool = False,
    stop_after: float | None = None,
    unsafe_local_exec: bool = False,
    trust_remote_code: bool = False,
    keys: Sequence[str] = (),
    judges: Sequence[str] = (),
) -> int:
    """Continue a run from its newest checkpoint. `changed` accepts a changed recipe, tokenizer or template."""
    directory = existing_run(run)
    with RunLock(directory):
        loaded = load_use(
            use,
            recorded=RunInfo.read(directory).use,
            unsafe_local_exec=unsafe_local_exec,
            trust_remote_code=trust_remote_code,
            keys=keys,
            judges=judges,
        )
        recipe = read_recipe(RunLayout(directory).recipe, (), loaded)
        check_model_code(directory, recipe, loaded)
        ready = build(recipe, loaded)
        print_notes(notices_of(ready.verifier))
        check_data(directory, ready)
        check_base(directory, ready)
        return run_from(directory, ready, stop_after, strict=strict, changed=changed)


def run_from(
    run: Path,
    ready: Runtime,
    stop_after: float | None = None,
    *,
    strict: bool = False,
    changed: bool = False,
    disk: Disk = DISK,
) -> int:
    """Run the loop from the newest checkpoint (or from the start), then write the model and the report."""
    recipe = ready.recipe
    checkpoint = newest_checkpoint(run, strict=strict)
    state, done = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    progress = Progress(recipe.iterations, done)
    progress.say(f"run: {run}")
    for warning in checkpoint.warnings if checkpoint else ():
        progress.say(f"warning: {warning}")
    lines = check_changes(run, ready, state, accept=changed)
    logs = RunLogs.resume(run, state, done, sinks=recipe.sinks, changed=changed, warn=progress.say, disk=disk)
    accepted = record_changes(run, ready, state, [*lines, *logs.changes], done, disk)
    recorder = Recorder(
        run, logs, keep=recipe.save.keep, extra=accepted, on_metrics=progress, warn=progress.say, disk=disk
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
        asyncio.run(run_loop(recorder, ready, stop_after, phase, progress.say))
    except (GroupwiseError, KeyboardInterrupt) as error:
        if isinstance(error, Stuck) and error.phase == "sample":  # an aborted sampling phase has changed nothing
            recorder.save(ready.learner, ready.buffer, ready.guards, last=True)
        if not isinstance(error, Storage):
            with contextlib.suppress(OSError):
                progress.say(f"report: {write_report([run])}")
            if recorder.done >= 0:
                progress.say(f"continue from the last checkpoint: groupwise resume {run}")
        if isinstance(error, Stuck):
            return CODES[error.cause]
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
    print(visible(closing_message(run, report, recorder, recipe), lines=True))
    return CODES.get(recorder.stopping, 0)


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
) -> None:
    """Run `begin` (the warm start) and the loop. A signal or `stop_after` ends them early; a second signal at once."""
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, recorder.stop, "out of time")
    with Watchdog(recorder.stop, say, lambda: recorder.current_phase, ready.recipe.machine.verdict_deadline):
        if recorder.done < 0:
            if not await begin():
                return
            ready.start_learner()
        await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, recorder, ready.guards, ready.evaluate)
        recorder.save(ready.learner, ready.buffer, ready.guards, last=True)


def closing_message(run: Path, report: Path, recorder: Recorder, recipe: Recipe) -> str:
    """The last output of a run: accuracy, paths, and the next command."""
    if recorder.stopping:
        status = f"{recorder.stopping} after {recorder.done} of {recipe.iterations} iterations; saved."
        if recorder.done < 0:
            status = f"{recorder.stopping} during the warm start; saved."
        command = f"groupwise resume {shlex.quote(str(run))}"
        return f"{status}{accuracy_summary(run)}\n  report: {report}\n  continue: {command}"
    model, name = RunLayout(run).model, shlex.quote(str(run))
    return (
        f"done: {recipe.iterations} iterations{accuracy_summary(run)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    groupwise eval {name} --samples 8\n          groupwise report {name} ANOTHER_RUN"
    )


def accuracy_summary(run: Path) -> str:
    """The first and the last held-out greedy accuracy in a run's metrics, as one line; empty without evaluations."""
    lines = [line for line in read_lines(RunLayout(run).metrics) if ACCURACY_GREEDY in line]
    if not lines:
        return ""
    first, last = (line[ACCURACY_GREEDY] for line in (lines[0], lines[-1]))
    low, high = (lines[-1][name] for name in INTERVALS[ACCURACY_GREEDY])
    interval = f"95 % interval {low:.3f} .. {high:.3f}"
    before = f"{first:.3f} -> " if len(lines) > 1 else ""
    return f"\n  held-out greedy {before}{last:.3f}  ({interval})"
