"""Runs of the packaged model that report their events and die at one of them."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.config.recipe import Recipe
from groupwise.data import Prompt, Sample, Verdict
from groupwise.engines.native.running_batch import RunningBatch
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.learner import Learner
from groupwise.lifecycle import run as commands
from groupwise.rollout.rollout_setting import RolloutSetting
from groupwise.training.build_run import RunObjects
from groupwise.training.run_recorder import RunRecorder
from tests.faults.small_runs import Quick, alive, begun, forked, left, ready, run_from
from tests.rollout.fakes import judged_by

Point = tuple[str, int]
"""The name of an event, and its how-manieth occurrence."""

LIBRARY = {"after writing the model"}
"""Events before which a library wrote files, past the run's disk."""


@dataclass
class Events:
    """The names of a run's events in order. The process dies at `death`."""

    death: Point | None = None
    names: list[str] = field(default_factory=list)
    disk: set[str] = field(default_factory=set)
    """The names of the events that follow a change of the disk."""

    def record(self, name: str) -> None:
        self.names.append(name)
        if self.death and self.death == (name, self.names.count(name)):
            os.kill(os.getpid(), signal.SIGKILL)

    def record_disk(self, name: str) -> None:
        self.disk.add(name)
        self.record(name)

    def around(self, owner: Any, name: str, call: str | None = None) -> None:
        """Record an event before and one after each call of `owner.name`."""
        inner, call = getattr(owner, name), call or name

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.record(f"before {call}")
            result = inner(*args, **kwargs)
            self.record(f"after {call}")
            return result

        setattr(owner, name, recorded)


class RecordedDisk(Quick):
    """A disk with an event before each change, after it, and with half of the data written."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def mkdir(self, path: Path) -> None:
        self.events.record("mkdir")
        super().mkdir(path)

    def write(self, path: Path, data: bytes) -> None:
        name = f"a sample's {path.suffix}" if path.name.startswith(".writing") else path.name
        super().write(path, data[: len(data) // 2])
        self.events.record_disk(f"half of {name}")
        super().write(path, data)
        self.events.record_disk(f"all of {name}")

    def append(self, path: Path, data: bytes) -> None:
        super().append(path, data[: len(data) // 2])
        self.events.record_disk(f"half of a line of {path.name}")
        super().append(path, data[len(data) // 2 :])
        self.events.record_disk(f"a line of {path.name}")

    def truncate(self, path: Path, size: int) -> None:
        self.events.record("truncate")
        super().truncate(path, size)

    def replace(self, source: Path, target: Path) -> None:
        self.events.record("before replace")
        super().replace(source, target)
        self.events.record_disk("after replace")

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.events.record_disk("remove")


def run(directory: Path, objects: RunObjects, death: Point | None = None) -> Events:
    """Continue a run to its end or to its death. Call it in a fork: it patches the package."""
    events = Events(death)
    for name in ("write", "save", "iteration", "restore"):
        events.around(RunRecorder, name)
    events.around(Learner, "step")
    events.around(Learner, "compute_measures", "measures")
    events.around(RunningBatch, "decode", "a token")
    events.around(DenoisingEngine, "_step", "a denoising step")
    events.around(RunObjects, "write", "writing the model")
    events.around(commands, "write_report")
    phase, evaluate, verifier = RunRecorder.phase, RunObjects.evaluate, objects.rollout_setting.verifier

    @contextmanager
    def recorded_phase(self: RunRecorder, name: str, **how: str) -> Iterator[None]:
        events.record(f"before {name}")
        with phase(self, name, **how):
            yield
        events.record(f"after {name}")

    async def recorded_evaluate(self: RunObjects, setting: RolloutSetting, learner: Any = None) -> dict[str, float]:
        events.record("before evaluate")
        numbers = await evaluate(self, setting, learner)
        events.record("after evaluate")
        return numbers

    async def recorded_verifier(prompt: Prompt, sample: Sample) -> Verdict:
        events.record("a verdict")
        return await verifier(prompt, sample)

    RunRecorder.phase, RunObjects.evaluate = recorded_phase, recorded_evaluate
    objects = replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(recorded_verifier)))
    assert run_from(directory, objects, disk=RecordedDisk(events)).exit_code == 0
    return events


@dataclass
class Undisturbed:
    """A run to its end: its events, its files, and a runtime with its first weights for the runs that are killed."""

    recipe: Recipe
    objects: RunObjects
    events: list[str]
    disk: set[str]
    files: dict[str, Any]
    seconds: float


def undisturbed(recipe: Recipe, home: Path) -> Undisturbed:
    """Run a recipe to its end. All its runs are forks of one runtime, so they begin with the same weights."""
    objects = ready(recipe)
    directory, report = begun(home / "undisturbed", recipe), home / "events.json"

    def whole() -> int:
        events = run(directory, objects)
        report.write_text(json.dumps([events.names, sorted(events.disk)]))
        return 0

    start = time.monotonic()
    assert forked(whole, home / "log", checks=True) == 0, (home / "log").read_text()
    seconds = time.monotonic() - start
    alive(directory, recipe)
    names, disk = json.loads(report.read_text())
    return Undisturbed(recipe, objects, names, set(disk), left(directory), seconds)


def go_on(directory: Path, straight: Undisturbed, death: Point | None = None) -> bool:
    """Start or resume a run in a fork. Return whether it died."""
    log = directory.with_suffix(".log")
    code = forked(lambda: run(directory, straight.objects, death) and 0, log)
    assert code in (0, -signal.SIGKILL), log.read_text()
    return code != 0


def killed_ends_as(straight: Undisturbed, directory: Path, death: Point, again: Point | None = None) -> None:
    """Kill a run at `death`, and at `again` once it resumed. Its end has the bytes of the undisturbed run."""
    begun(directory, straight.recipe)
    assert go_on(directory, straight, death), death
    if again:
        go_on(directory, straight, again)
    assert not go_on(directory, straight)
    assert left(directory) == straight.files, (death, again)
    alive(directory, straight.recipe)


def points(names: list[str], share: float) -> list[Point]:
    """Every name once: its occurrence at `share` of all its occurrences.

    >>> points(["a token", "a line", "a token", "a token"], 0.5)
    [('a token', 2), ('a line', 1)]
    """
    return [(name, 1 + int(share * (count - 1))) for name, count in Counter(names).items()]
