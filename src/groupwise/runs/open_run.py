"""`OpenRun`: a run that this process continues. It is opened once, and handed on from the command to the loop."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from groupwise.core import Usage
from groupwise.runs.atomic_writes import DISK, FileSystemOperations, storage_errors, write_file
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.phase_directories import earlier_phases, phases_with
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.write_run_info import write_info


@dataclass(frozen=True, slots=True, eq=False)
class OpenRun:
    """A run whose `lock` this process holds: its files, and the present contents of run.json and recipe.toml.

    Both files are read once. `changed` writes them, and returns the run as it is then. `recipe_text` is the text of
    recipe.toml. `phase_directories` are the directories of all phases of the run that this phase belongs to, else
    empty.
    """

    layout: RunLayout
    info: RunInfo
    recipe_text: str
    lock: RunLock
    phase_directories: tuple[Path, ...] = ()

    @classmethod
    def read(cls, lock: RunLock, recipe: str) -> "OpenRun":
        """The run that `lock` holds, with the text of its recipe. Raises `Storage` if run.json cannot be read."""
        layout = lock.layout
        return cls(layout, RunInfo.read(layout), recipe, lock, phases_with(layout.run_directory))

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.layout.run_directory

    @property
    def earlier(self) -> Mapping[str, Path]:
        """The directories of the phases before this one, by name."""
        return earlier_phases(self.path, self.phase_directories)

    @property
    def code(self) -> Path:
        """The folder with the source files of its reward functions: the whole run's, if it is a phase."""
        return (RunLayout(self.path.parent) if self.phase_directories else self.layout).code

    def changed(self, info: RunInfo, recipe: str | None = None, *, disk: FileSystemOperations = DISK) -> "OpenRun":
        """Write the recipe and run.json if they differ from the present ones. Returns the run as it is then."""
        assert self.lock.held, "only the process that holds the lock writes to a run"
        if recipe is not None and recipe != self.recipe_text:
            write_recipe(self.layout, recipe, disk)
        if info != self.info:
            write_info(self.layout, info, disk=disk)
        return replace(self, info=info, recipe_text=self.recipe_text if recipe is None else recipe)


def start_run(
    lock: RunLock, info: RunInfo, recipe: str, phases: tuple[Path, ...] = (), disk: FileSystemOperations = DISK
) -> OpenRun:
    """Write run.json, then recipe.toml, which makes the directory a run. Both are synced to disk on return."""
    write_info(lock.layout, info, disk=disk)
    write_recipe(lock.layout, recipe, disk)
    return OpenRun(lock.layout, info, recipe, lock, phases)


def recipe_text(layout: RunLayout) -> str:
    """The text of a run's recipe.toml. Raises `Usage` if it cannot be read."""
    try:
        return layout.recipe.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        evidence = (isinstance(error, OSError) and error.strerror) or str(error)
        raise Usage(f"{layout.recipe} cannot be read", evidence=evidence, fix="restore it from a copy") from error


def write_recipe(layout: RunLayout, recipe: str, disk: FileSystemOperations = DISK) -> None:
    """Write a run's recipe.toml, atomically. Raises `Storage`."""
    with storage_errors("the recipe", layout.run_directory):
        write_file(layout.recipe, recipe.encode(), disk)
