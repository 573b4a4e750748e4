"""What the commands do that carry a run: train, resume."""

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from groupwise.commands.check import check_inputs, dry_run
from groupwise.config import text
from groupwise.config.recipe import Recipe
from groupwise.config.text import base_of, read_recipe, write
from groupwise.config.user_code import load_use
from groupwise.data import BadData, GroupwiseError, Storage, Task, Verifier, visible
from groupwise.report.report import existing_run, write_report
from groupwise.runs.checkpoints import RunLock, newest_checkpoint, run_directory
from groupwise.runs.disk import DISK, PARKED, Disk, remove_leftovers, storage_errors, write_directory
from groupwise.runs.logs import RunLogs, read_lines
from groupwise.runs.replay import ReplayLog
from groupwise.training.about import about, begin, recorded
from groupwise.training.build import Runtime, build
from groupwise.training.identity import asked, identity, note_changes, same_base, same_code, same_data, see_changes
from groupwise.training.loop import run as loop
from groupwise.training.progress import Progress
from groupwise.training.recorder import Recorder
from groupwise.training.warm_start import forget, warm_start
from groupwise.training.watchdog import CODES, Stuck, Watchdog

DEFAULT = Path(text.__file__).with_name("default.toml")


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
    """A new run of a recipe (the packaged one where none is named)."""
    loaded = load_use(
        use, unsafe_local_exec=unsafe_local_exec, trust_remote_code=trust_remote_code, keys=keys, judges=judges
    )
    path = Path(recipe_path) if recipe_path else DEFAULT
    recipe = read_recipe(path, overrides, loaded)
    seen: list[str] = []
    built: list[tuple[Task, Verifier]] = []
    raise_all([*dry_run(recipe), *check_inputs(recipe, loaded, seen.append, hand=lambda *both: built.append(both))])
    tell(seen)
    ready = build(recipe, loaded, *built)
    run = run_directory(Path(out), name or (path.stem if recipe_path else plain_name(recipe.task)))
    with RunLock(run):
        description = about(run, recipe, base_of(path, overrides), loaded, command)
        text = write(recipe)
        begin(run, description | asked(ready) | ready.adapter | identity(ready, text) | {"changes": []}, text)
        return run_from(run, ready, stop_after)


def plain_name(task: str) -> str:
    """A task's name as a directory can have it.

    >>> plain_name("datasets:openai/gsm8k:main@train"), plain_name("data/sums.v2.jsonl")
    ('gsm8k-main', 'sums.v2')
    """
    return re.sub(r"[^\w.-]+", "-", Path(task.partition("@")[0]).stem).strip("-")


def tell(lines: Sequence[str]) -> None:
    """Lines for the person who watches, where the run's progress goes too."""
    for line in lines:
        print(visible(line), file=sys.stderr, flush=True)


def raise_all(problems: Sequence[GroupwiseError]) -> None:
    """Raise what was found, if anything: all of it at once, under the first one's exit code."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise type(problems[0])(f"{len(problems)} things are wrong", evidence="\n".join(map(str, problems)))


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
    """Go on with a run from its newest whole checkpoint. `changed` accepts another recipe, tokenizer or template."""
    directory = existing_run(run)
    with RunLock(directory):
        loaded = load_use(
            use,
            recorded=dict(recorded(directory, "use") or {}),
            unsafe_local_exec=unsafe_local_exec,
            trust_remote_code=trust_remote_code,
            keys=keys,
            judges=judges,
        )
        recipe = read_recipe(directory / "recipe.toml", (), loaded)
        same_code(directory, recipe, loaded)
        ready = build(recipe, loaded)
        tell(getattr(ready.verifier, "notices", ()))
        same_data(directory, ready)
        same_base(directory, ready)
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
    """The loop from wherever the directory stands, then the model and the report."""
    recipe = ready.recipe
    checkpoint = newest_checkpoint(run, strict=strict)
    state, done = (checkpoint.state, checkpoint.iteration) if checkpoint else ({}, 0)
    progress = Progress(recipe.iterations, done)
    progress.say(f"run: {run}")
    for warning in checkpoint.warnings if checkpoint else ():
        progress.say(f"warning: {warning}")
    lines = see_changes(run, ready, state, accept=changed, warn=progress.say)
    record = RunLogs.resume(run, state, done, sinks=recipe.sinks, changed=changed, warn=progress.say, disk=disk)
    beside = note_changes(run, ready, state, [*lines, *record.changes], done, disk)
    logbook = Recorder(
        run, record, keep=recipe.save.keep, beside=beside, told=progress, warn=progress.say, disk=disk
    )  # fmt: skip
    ready.buffer.replay = ReplayLog(run, lambda: logbook.done, progress.say, disk=disk)
    if checkpoint:
        with fitting(run, changed=bool(beside["changes"])):
            logbook.restore(checkpoint, ready.learner, ready.buffer, ready.guards)
        if logbook.done >= recipe.iterations:
            progress.say(f"nothing is left to do: {logbook.done} of {recipe.iterations} iterations are done")
    try:
        phase = partial(warm_start, run, ready, lambda: logbook.stopping, progress.say, changed=changed, disk=disk)
        asyncio.run(guided(logbook, ready, stop_after, phase, progress.say))
    except (GroupwiseError, KeyboardInterrupt) as error:
        if isinstance(error, Stuck) and error.phase == "sample":  # a take that was given up has changed nothing
            logbook.save(ready.learner, ready.buffer, ready.guards, last=True)
        if not isinstance(error, Storage):
            with contextlib.suppress(OSError):
                progress.say(f"report: {write_report([run])}")
            if logbook.done >= 0:
                progress.say(f"go on from the last checkpoint: groupwise resume {run}")
        if isinstance(error, Stuck):
            return CODES[error.why]
        raise
    finally:
        progress.end()
        record.close()
        for warning in record.warnings:
            progress.say(f"warning: {warning}")
    if logbook.done >= 0:
        forget(run, disk)
    if not logbook.stopping:
        write_output(run, ready, disk)
    with storage_errors("the report", run):
        report = write_report([run])
    print(visible(ending(run, report, logbook, recipe), lines=True))
    return CODES.get(logbook.stopping, 0)


@contextlib.contextmanager
def fitting(run: Path, *, changed: bool) -> Iterator[None]:
    """`BadData` if a checkpoint does not fit a recipe that was changed, such as one with another set of models."""
    try:
        yield
    except (AssertionError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if not changed:
            raise
        raise BadData(
            f"the checkpoint of {run} does not fit its changed recipe",
            evidence=f"{type(error).__name__}: {error}",
            fix="bring the old recipe.toml back, or start a new run with this one",
        ) from error


def write_output(run: Path, ready: Runtime, disk: Disk) -> None:
    """The trained model, or adapter, as `<run>/model`: whole or not at all."""
    model = run / "model"
    with storage_errors("the model", run):
        remove_leftovers(run, [model.with_name(model.name + PARKED)], disk)
        with write_directory(model, disk) as draft:
            ready.write(draft)


async def guided(
    logbook: Recorder,
    ready: Runtime,
    stop_after: float | None,
    begin: Callable[[], Awaitable[bool]],
    say: Callable[[str], None],
) -> None:
    """The loop after what it begins with, ended early by a signal or by the clock; a second signal ends it at once."""
    if stop_after is not None:
        asyncio.get_running_loop().call_later(stop_after, logbook.stop, "out of time")
    with Watchdog(logbook.stop, say, lambda: logbook.doing, ready.recipe.machine.verdict_deadline):
        if logbook.done < 0 and not await begin():
            return
        await loop(ready.recipe, ready.buffer, ready.engine, ready.learner, logbook, ready.guards, ready.evaluate)
        logbook.save(ready.learner, ready.buffer, ready.guards, last=True)


def ending(run: Path, report: Path, logbook: Recorder, recipe: Recipe) -> str:
    """The last words of a run: what it reached, where things lie, and how to go on."""
    if logbook.stopping:
        where = f"{logbook.stopping} after {logbook.done} of {recipe.iterations} iterations; saved."
        if logbook.done < 0:
            where = f"{logbook.stopping} during the warm start; saved."
        return f"{where}{reached(run)}\n  report: {report}\n  go on:  groupwise resume {shlex.quote(str(run))}"
    model, name = run / "model", shlex.quote(str(run))
    return (
        f"done: {recipe.iterations} iterations{reached(run)}\n  report: {report}\n  model:  {model}\n"
        f"  try:    groupwise eval {name} --samples 8\n          groupwise report {name} ANOTHER_RUN"
    )


def reached(run: Path) -> str:
    """The first and the last held-out greedy accuracy that a run wrote, as a line."""
    told = [line for line in read_lines(run / "metrics.jsonl") if "eval/accuracy_greedy" in line]
    if not told:
        return ""
    first, last = (line["eval/accuracy_greedy"] for line in (told[0], told[-1]))
    interval = f"95 % interval {told[-1]['eval/low_greedy']:.3f} .. {told[-1]['eval/high_greedy']:.3f}"
    before = f"{first:.3f} -> " if len(told) > 1 else ""
    return f"\n  held-out greedy {before}{last:.3f}  ({interval})"
