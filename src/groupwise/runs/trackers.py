"""Trackers: TensorBoard, wandb, trackio or a user's class receive metrics, timings and some samples."""

import html
import importlib
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from groupwise.core import MissingRequirement, Usage
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.sample_table import SampleTable, code_block


@runtime_checkable
class Tracker(Protocol):
    """A metrics tracker, such as TensorBoard. A user's class is called with the run's path."""

    def write(self, iteration: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class SampleTableTracker(Protocol):
    """A tracker that also receives a table of samples in each iteration, before the iteration's numbers."""

    def write_samples(self, iteration: int, table: SampleTable) -> None: ...


class TensorBoardTracker:
    """Writes TensorBoard event files to `<run>/tensorboard`. Samples are code blocks, since it renders Markdown."""

    def __init__(self, package: Any, layout: RunLayout) -> None:
        self._writer = package.SummaryWriter(str(layout.tensorboard))

    def write(self, iteration: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, iteration)

    def write_samples(self, iteration: int, table: SampleTable) -> None:
        self._writer.add_text("samples", table.markdown, iteration)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Sends metrics to wandb, or to trackio, which has the same interface. A resumed run continues under its name."""

    def __init__(self, package: Any, layout: RunLayout, *, cell: Callable[[str], str] = str, **options: Any) -> None:
        """`cell` prepares a text for a cell of a table. `options` are passed to the package's `init`."""
        self._package, self._cell = package, cell
        project = os.environ.get("WANDB_PROJECT") or "groupwise"
        self._package.init(
            project=project, name=layout.run_directory.name, resume="allow", config=recipe_of(layout), **options
        )

    def write(self, iteration: int, numbers: dict[str, float]) -> None:
        self._package.log(numbers, step=iteration)

    def write_samples(self, iteration: int, table: SampleTable) -> None:
        rows = [[self._cell(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
        self._package.log({"samples": self._package.Table(columns=list(table.columns), data=rows)}, step=iteration)

    def close(self) -> None:
        self._package.finish()


def wandb(package: Any, layout: RunLayout) -> Tracker:
    """Opens wandb, set to send no git state, code, console output or machine data.

    It sends numbers, samples, the recipe and the run's name.
    """
    settings = package.Settings(
        console="off",
        disable_git=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    return WandbTracker(package, layout, id=layout.run_directory.name, dir=str(layout.run_directory), settings=settings)


def trackio(package: Any, layout: RunLayout) -> Tracker:
    """Opens trackio. Its tables render Markdown and HTML, so texts are escaped and become code blocks."""
    return WandbTracker(package, layout, cell=lambda text: code_block(html.escape(text, quote=False)))


def recipe_of(layout: RunLayout) -> dict[str, Any]:
    """The resolved recipe of a run as tables; empty for a run without one."""
    path = layout.recipe
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


OPENERS: dict[str, tuple[str, Callable[[Any, RunLayout], Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoardTracker),
    "wandb": ("wandb", wandb),
    "trackio": ("trackio", trackio),
}


class NamedTrackers:
    """The named trackers of a run. One that fails while training is dropped with a warning; training continues."""

    def __init__(self, names: Iterable[str], layout: RunLayout, load: Callable[[str], Any] | None = None) -> None:
        """`load` returns the class of a user's tracker by its name, such as `my_file:MyTracker`."""
        self.warnings: tuple[str, ...] = ()
        self._open: dict[str, Tracker] = {}
        for name in names:
            if ":" in name and load is not None:
                tracker = load(name)
                try:
                    self._open[name] = tracker(layout.run_directory)
                except Exception as error:  # a user's class may raise anything
                    evidence, fix = f"{type(error).__name__}: {error}", "correct the class, or leave the tracker out"
                    raise MissingRequirement(
                        f"the tracker {name} cannot be opened", evidence=evidence, fix=fix
                    ) from error
                continue
            if name not in OPENERS:
                raise Usage(f"unknown tracker {name!r}", fix="the trackers are " + ", ".join(OPENERS))
            module, opener = OPENERS[name]
            try:
                package = importlib.import_module(module)
            except ImportError as error:
                fix = f"pip install 'groupwise[{name}]'"
                raise MissingRequirement(
                    f"the tracker {name} needs the package {module}", evidence=str(error), fix=fix
                ) from error
            try:
                self._open[name] = opener(package, layout)
            except Exception as error:  # a tracker may raise anything; its message may contain a key, its type does not
                fix = f"log in to {name}, configure it for offline use, or leave the tracker out"
                raise MissingRequirement(
                    f"the tracker {name} cannot be opened", evidence=type(error).__name__, fix=fix
                ) from None

    def write(self, line: Mapping[str, Any]) -> None:
        """Send the finite numbers of an iteration's metrics or timings to each tracker."""
        numbers = {
            name: float(value)
            for name, value in line.items()
            if name != "iteration" and isinstance(value, int | float) and math.isfinite(value)
        }
        self._each(lambda tracker: tracker.write(int(line.get("iteration", 0)), numbers))

    def write_samples(self, iteration: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Send a table of some samples to each tracker that takes samples."""
        if any(isinstance(tracker, SampleTableTracker) for tracker in self._open.values()):
            table = SampleTable.of(lines)
            self._each(
                lambda tracker: (
                    tracker.write_samples(iteration, table) if isinstance(tracker, SampleTableTracker) else None
                )
            )

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                act(tracker)
            except Exception as error:  # a tracker may raise anything, and no tracker may stop a run
                # The type only: the message of a failed request may contain a key.
                why = type(error).__name__
                self.warnings += (
                    f"the tracker {name} failed and is no longer used ({why}); metrics.jsonl is complete",
                )
                del self._open[name]
