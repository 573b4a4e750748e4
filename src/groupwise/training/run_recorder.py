"""The loop's recorder: writes metrics, samples, timings and checkpoints to the run directory."""

import asyncio
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from groupwise.cluster.rank_messages import other_shards
from groupwise.core import Storage, counted
from groupwise.data import SECONDS, TOKENS_PER_SECOND, UNVERIFIABLE, Batch, Ids, metric_bound
from groupwise.evaluation.conversation_metrics import describe_conversations
from groupwise.learner import Learner, StepResult
from groupwise.models.return_freed_memory import return_freed_memory
from groupwise.objective import Objective
from groupwise.rollout import IterationRollouts, RolloutBuffer
from groupwise.runs.atomic_writes import DISK, FileSystemOperations, write_file
from groupwise.runs.best_checkpoint import best_iteration, held_out_values, is_evaluated
from groupwise.runs.checkpoints import Checkpoint, save_checkpoint, tensor_bytes
from groupwise.runs.json_lines import finite, json_line, read_lines
from groupwise.runs.run_layout import SAMPLE_FILES, RunLayout, numbered
from groupwise.runs.run_logs import RunLogs
from groupwise.training.iteration_records import batch_dump, iteration_metrics, sample_lines, token_columns
from groupwise.training.run_guards import RunGuards
from groupwise.training.sample_pictures import sample_pictures

T = TypeVar("T")
MISSES = 3
"""The run stops after this many failed checkpoints in a row."""


class RunRecorder:
    """Writes a run's metrics, samples and checkpoints. `done` counts its iterations; -1 before the first evaluation.

    `stopping` is the reason for a requested stop, or "". `solved` is set if the run ends early because all its groups
    are right. `on_metrics` receives each line of metrics, its timing and the learner, and `notify` a line for the user.
    `extra` is stored in every checkpoint. `best` is the metric by which the best checkpoint is kept. `engine_figures`
    returns numbers about the engines since its last call, for timings.jsonl. `decode` gives the text of a prompt.
    Without `keeps_samples` no samples are written.
    """

    def __init__(
        self,
        layout: RunLayout,
        logs: RunLogs,
        *,
        keep: int,
        best: str = "",
        extra: Mapping[str, Any] = MappingProxyType({}),
        on_metrics: Callable[[dict[str, Any], dict[str, Any], Learner], None] = lambda line, timing, learner: None,
        engine_figures: Callable[[], Mapping[str, float]] = dict,
        notify: Callable[[str], None] = lambda text: None,
        decode: Callable[[Ids], str] = lambda ids: "",
        keeps_samples: bool = True,
        disk: FileSystemOperations = DISK,
    ) -> None:
        self.done = -1
        self.steps = 0
        self.stopping = self.current_phase = ""
        self.solved = False
        self.dumps = layout.skipped
        self._layout, self.logs, self._keep, self.notify, self._disk = layout, logs, keep, notify, disk
        self._on_metrics, self._engine_figures, self.extra = on_metrics, engine_figures, dict(extra)
        self._best, self._decode, self._keeps_samples = best, decode, keeps_samples
        self._evaluated = [line for line in read_lines(layout.metrics) if is_evaluated(line)]
        self._saved = -1
        self._misses = 0
        self._unwritten = 0
        self._warned_missing = self._warned_ungraded = False
        self._seconds: dict[str, float] = {}
        self._start = time.monotonic()
        self._stop = asyncio.Event()

    # Called by the loop

    @contextmanager
    def phase(self, name: str, *, watched_as: str = "") -> Iterator[None]:
        """Measure the seconds that the loop spends in this phase (`sample`, `learn`, ...), for timings.jsonl.

        `current_phase` is `watched_as` meanwhile, by default the name. Memory that earlier phases freed is returned.
        """
        return_freed_memory()
        start, self.current_phase = time.monotonic(), watched_as or name
        try:
            yield
        finally:
            self.current_phase = ""
            self.add_seconds(name, time.monotonic() - start)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to the iteration's seconds of this name, for timings.jsonl."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    async def unless_stopped(self, work: Awaitable[T], patience: float = 0.0) -> T | None:
        """Await `work`, or cancel it and return None if a stop is requested first; a resume then repeats it.

        After the stop, `work` has `patience` seconds left.
        """
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if patience and not task.done():
                await asyncio.wait({task}, timeout=patience)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task})
            return None
        finally:
            stop.cancel()

    def stop(self, why: str) -> None:
        """Request that the run saves a checkpoint and ends at the next safe point."""
        self.stopping = self.stopping or why
        self._stop.set()

    def evaluation(self, line: dict[str, float], learner: Learner) -> None:
        """Write the metrics of the evaluation before the first iteration."""
        self.done = 0
        self.write({"iteration": 0, "step": 0, **line}, learner)

    def iteration(
        self, collected: IterationRollouts, batch: Batch, results: Sequence[StepResult], objective: Objective
    ) -> dict[str, Any]:
        """Write the samples of an iteration and return its metrics."""
        self.done += 1
        rollouts = collected.sampled_rollouts
        unverifiable, answers, cause = collected.unverifiable
        line = {
            "iteration": self.done,
            "step": self._step(results),
            **collected.metrics,
            **iteration_metrics(batch, results, objective),
            **describe_conversations(rollouts),
            UNVERIFIABLE: unverifiable / max(1, answers),  # of all answers; the batch may not contain them
        }
        if self._keeps_samples:
            pictures, boxes = sample_pictures(rollouts)
            lines = [row | box for row, box in zip(sample_lines(rollouts, batch, self._decode), boxes, strict=True)]
            self.logs.samples(self.done, lines, token_columns(rollouts, results, objective), pictures)
        if unverifiable > metric_bound(UNVERIFIABLE) * answers and not self._warned_ungraded:
            self._warned_ungraded = True
            ungraded = f"{unverifiable} of {counted(answers, 'answer')} could not be graded"
            self.notify(f"iteration {self.done}: {ungraded}; the first because of: {cause}")
        if collected.missing_selected_rollout_count and not self._warned_missing:
            self._warned_missing = True
            self.notify(
                f"iteration {self.done} trains on {counted(len(collected.selected), 'prompt')}: "
                f"{collected.missing_selected_rollout_count} missing after "
                f"{counted(collected.sampling_round_count, 'round')}; rollout/missing counts later ones"
            )
        for step, result in enumerate(results):
            if result.skip_reason:
                self._dump(step, result)
        self._seconds["tokens"] = float(sum(len(s.tokens) for f in rollouts for s in f.samples))
        return line

    def write(self, line: dict[str, Any], learner: Learner) -> None:
        """Write one iteration's metrics, and its timings, while the learner has the weights after it."""
        self.logs.metrics(line)
        self._evaluated += [finite(line)] if is_evaluated(line) else []
        timing = self._timing(line["iteration"])
        self.logs.timings(timing)
        self._on_metrics(line, timing, learner)

    def save(self, learner: Learner, buffer: RolloutBuffer, guards: RunGuards, *, last: bool = False) -> None:
        """Save a checkpoint. A failure is a warning; MISSES failures in a row, or one with `last`, raise `Storage`.

        The previous checkpoint stays until a newer one is complete. The first save raises, too: a run with results and
        no checkpoint could not be continued.
        """
        if self._saved == self.done:
            return
        if self.logs.failures > self._unwritten:
            self._unwritten = self.logs.failures
            self.notify(f"warning: logs could not be written {self._unwritten} times; their lines are kept in memory")
        return_freed_memory()
        tensors, state = learner.state()
        try:
            contents = {
                "done": self.done,
                "step": self.steps,
                "learner": state,
                "buffer": buffer.state(),
                "guards": guards.state(),
                **self.extra,
                **self.logs.state(),
            }
            best = partial(best_iteration, held_out_values(self._evaluated, self._best))
            save_checkpoint(
                self._layout, self.done, tensors, contents, keep=self._keep, best=best,
                others=other_shards(learner.ranks), disk=self._disk,
            )  # fmt: skip
        except Storage as error:
            self._misses += 1
            self.notify(str(error))
            if self._misses >= MISSES or last or self._saved < 0:
                raise
        else:
            self._saved, self._misses = self.done, 0

    # Called on resume

    def restore(
        self, checkpoint: Checkpoint, learner: Learner | None, buffer: RolloutBuffer, guards: RunGuards
    ) -> None:
        """Restore learner, buffer, guards and counts from a checkpoint. Ranks restore a sharded learner themselves."""
        state = checkpoint.state
        if learner is not None:
            learner.restore(checkpoint.tensors(), state["learner"])
        buffer.restore(state["buffer"])
        guards.restore(state["guards"])
        self.done = self._saved = state["done"]
        self.steps = state["step"]

    def _step(self, results: Sequence[StepResult]) -> int:
        self.steps += sum(not t.skip_reason for t in results)
        return self.steps

    def _timing(self, iteration: int) -> dict[str, Any]:
        now = time.monotonic()
        tokens = self._seconds.pop("tokens", 0.0)
        seconds, self._start = now - self._start, now
        phases, self._seconds = self._seconds, {}
        return {
            "iteration": iteration,
            "clock": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            SECONDS: seconds,
            **{f"{SECONDS}/{name}": s for name, s in phases.items()},
            TOKENS_PER_SECOND: tokens / seconds if seconds > 0 else 0.0,
            **self._engine_figures(),
            "memory_mib": peak_memory(),
        }

    def _dump(self, step: int, result: StepResult) -> None:
        """Write the batch of a skipped optimizer step, so that the step can be computed again."""
        lines, tensors = batch_dump(result.batch)
        stem = self.dumps / f"{numbered(self.done)}-{step}"
        where = f"batch in {stem}.*"
        try:
            if not self.dumps.is_dir():
                self._disk.mkdir(self.dumps)
            for suffix, data in zip(SAMPLE_FILES, (b"".join(map(json_line, lines)), tensor_bytes(tensors))):
                write_file(stem.with_suffix(suffix), data, self._disk)
        except OSError as error:
            where = f"its batch could not be written: {error.strerror}"
        self.notify(f"iteration {self.done}, step {step}: {result.skip_reason}; weights unchanged, {where}")


def peak_memory() -> float:
    """The largest resident memory of this process so far, in MiB. macOS counts it in bytes, Linux in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
