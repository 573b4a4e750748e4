"""A run's directory as the loop sees it: how far the run is, what each iteration left, and where to go on."""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from groupwise.data import Batch, Storage
from groupwise.evaluation.conversations import describe_conversations
from groupwise.learner import Learner, StepResult
from groupwise.objective import Objective
from groupwise.rollout import Buffer, Rollouts
from groupwise.runs.checkpoints import Checkpoint, save_checkpoint, tensor_bytes
from groupwise.runs.disk import DISK, Disk, write_file
from groupwise.runs.logs import RunLogs, json_line
from groupwise.training.guards import Guards
from groupwise.training.observe import batch_dump, numbers, sample_lines, token_numbers

T = TypeVar("T")
MISSES = 3
"""Checkpoints in a row that may fail before the run stops."""


class Recorder:
    """Writes what a run leaves behind. `done` iterations stand in it; -1 before the first evaluation.

    `stopping` says why the run was asked to stop, and is empty as long as it was not. `told` receives each line of
    metrics for the person who watches. `beside` is stored in every checkpoint.
    """

    def __init__(
        self,
        run: Path,
        record: RunLogs,
        *,
        keep: int,
        beside: Mapping[str, Any] = MappingProxyType({}),
        told: Callable[[dict[str, Any], dict[str, Any]], None] = lambda line, timing: None,
        warn: Callable[[str], None] = lambda text: None,
        disk: Disk = DISK,
    ) -> None:
        self.done = -1
        self.steps = 0
        self.stopping = self.doing = ""
        self.dumps = run / "skipped"
        self._run, self._record, self._keep, self._told, self._warn, self._disk = run, record, keep, told, warn, disk
        self._beside = dict(beside)
        self._saved = -1
        self._misses = 0
        self._unwritten = 0
        self._short = False
        self._seconds: dict[str, float] = {}
        self._began = time.monotonic()
        self._stop = asyncio.Event()

    # What the loop says

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Seconds spent inside count under this name in timings.jsonl; `doing` has the name meanwhile."""
        began, self.doing = time.monotonic(), name
        try:
            yield
        finally:
            self.doing = ""
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    async def unless_stopped(self, work: Awaitable[T]) -> T | None:
        """The work's result, or None once somebody asks to stop: it is then given up, to be done again on resume."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task})
            return None
        finally:
            stop.cancel()

    def stop(self, why: str) -> None:
        """Ask the run to end at the next safe point and save."""
        self.stopping = self.stopping or why
        self._stop.set()

    def evaluation(self, line: dict[str, float]) -> None:
        """The numbers before the first iteration."""
        self.done = 0
        self.write({"iteration": 0, "step": 0, **line})

    def iteration(
        self, collected: Rollouts, batch: Batch, taken: Sequence[StepResult], objective: Objective
    ) -> dict[str, Any]:
        """One iteration's samples are written, its numbers returned."""
        self.done += 1
        rollouts = collected.all
        unjudged, answers, _ = collected.unverifiable
        line = {
            "iteration": self.done,
            "step": self._step(taken),
            **collected.metrics,
            **numbers(batch, taken, objective),
            **describe_conversations(rollouts),
            "outcome/unverifiable": unjudged / max(1, answers),  # of all answers: the batch may be without them
        }
        self._record.samples(self.done, sample_lines(rollouts, batch), token_numbers(rollouts, taken))
        if collected.missing and not self._short:
            self._short = True
            self._warn(
                f"iteration {self.done} goes on with {len(collected.selected)} prompts: {collected.missing} missing "
                f"after {collected.rounds} rounds; later ones are counted in rollout/missing"
            )
        for number, step in enumerate(taken):
            if step.skipped:
                self._dump(number, step)
        self._seconds["tokens"] = float(sum(len(s.tokens) for f in rollouts for s in f.samples))
        return line

    def write(self, line: dict[str, Any]) -> None:
        """A line of metrics, and what it cost."""
        self._record.metrics(line)
        timing = self._timing(line["iteration"])
        self._record.timings(timing)
        self._told(line, timing)

    def save(self, learner: Learner, buffer: Buffer, guards: Guards, *, last: bool = False) -> None:
        """A checkpoint of this moment. A full disk is borne a few times: the one before it still stands.

        Not where it is the `last` chance: then `Storage` is raised.
        """
        if self._saved == self.done:
            return
        if self._record.failures > self._unwritten:
            self._unwritten = self._record.failures
            self._warn(f"warning: logs could not be written {self._unwritten} times; their lines wait in memory")
        tensors, state = learner.state()
        try:
            whole = {
                "done": self.done,
                "step": self.steps,
                "learner": state,
                "buffer": buffer.state(),
                "guards": guards.state(),
                **self._beside,
                **self._record.state(),
            }
            save_checkpoint(self._run, self.done, tensors, whole, keep=self._keep, disk=self._disk)
        except Storage as error:
            self._misses += 1
            self._warn(str(error))
            if self._misses >= MISSES or last:
                raise
        else:
            self._saved, self._misses = self.done, 0

    # Where it goes on

    def restore(self, checkpoint: Checkpoint, learner: Learner, buffer: Buffer, guards: Guards) -> None:
        """Everything as it stood when the checkpoint was written."""
        state = checkpoint.state
        learner.restore(checkpoint.tensors(), state["learner"])
        buffer.restore(state["buffer"])
        guards.restore(state["guards"])
        self.done = self._saved = state["done"]
        self.steps = state["step"]

    def _step(self, taken: Sequence[StepResult]) -> int:
        self.steps += sum(not t.skipped for t in taken)
        return self.steps

    def _timing(self, iteration: int) -> dict[str, Any]:
        now = time.monotonic()
        tokens = self._seconds.pop("tokens", 0.0)
        seconds, self._began = now - self._began, now
        phases, self._seconds = self._seconds, {}
        return {
            "iteration": iteration,
            "clock": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": seconds,
            **{f"seconds/{name}": s for name, s in phases.items()},
            "tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    def _dump(self, number: int, step: StepResult) -> None:
        """The batch of a skipped step, so that what went wrong can be computed again."""
        lines, tensors = batch_dump(step.batch)
        stem = self.dumps / f"{self.done:06d}-{number}"
        where = f"batch in {stem}.*"
        try:
            if not self.dumps.is_dir():
                self._disk.mkdir(self.dumps)
            write_file(stem.with_suffix(".jsonl"), b"".join(map(json_line, lines)), self._disk)
            write_file(stem.with_suffix(".safetensors"), tensor_bytes(tensors), self._disk)
        except OSError as error:
            where = f"its batch could not be written: {error.strerror}"
        self._warn(f"iteration {self.done}, step {number}: {step.skipped}; weights untouched, {where}")
