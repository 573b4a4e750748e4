"""The run of a warm start: a run of the method `sft`, in the folder `warm_start` of the run that it belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager

from groupwise.config.recipe_toml import write_for
from groupwise.lifecycle.create_or_open_run import first_info
from groupwise.lifecycle.run_info import movable
from groupwise.methods.warm_start_method import warm_start_method
from groupwise.runs.atomic_writes import FileSystemOperations, delete, storage_errors
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.open_run import OpenRun, recipe_text, start_run
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects


@contextmanager
def warm_start_run(run: OpenRun, phase: RunObjects, disk: FileSystemOperations) -> Iterator[OpenRun]:
    """A context with the run of a warm start, opened again or new. `run` is the one that it belongs to.

    References to earlier phases stay, so that the whole run can be moved.
    """
    layout = RunLayout(run.layout.warm_start)
    with storage_errors("the warm start", run.path):
        if not layout.run_directory.is_dir():
            disk.mkdir(layout.run_directory)
            disk.sync(run.path)
    text = write_for(run.earlier, phase.recipe)
    with RunLock(layout) as lock:
        if layout.is_run:
            opened = OpenRun.read(lock, recipe_text(layout))
            yield opened.changed(opened.info, text, disk=disk)
        else:
            base = warm_start_method.__name__
            info = first_info("warm_start", phase, phase.user_code, base, run.info.command, text)
            yield start_run(lock, movable(info, run.earlier), text, disk=disk)


def remove_checkpoints(layout: RunLayout, disk: FileSystemOperations) -> None:
    """Delete the warm start's checkpoints. Call it only if the run itself has a checkpoint."""
    if layout.warm_start.is_dir() and (old := RunLayout(layout.warm_start).checkpoints).is_dir():
        with storage_errors("the warm start", layout.run_directory):
            delete(old, disk)
