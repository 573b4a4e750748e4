"""Metrics, timings and samples of a run, written while it runs. A resumed run continues the same files."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from groupwise.core import Storage
from groupwise.runs.atomic_writes import DISK, DRAFT, FileSystemOperations, storage_errors, write_file
from groupwise.runs.checkpoints import tensor_bytes
from groupwise.runs.json_lines import file_bytes, json_line, parse_lines
from groupwise.runs.log_hashes import check_hashes, hash_line, log_difference
from groupwise.runs.run_layout import PICTURES, SAMPLE_FILES, RunLayout, iteration_files
from groupwise.runs.trackers import NamedTrackers

LOGS = ("metrics", "timings", "samples")
"""The logs that grow in each iteration: metrics and timings (one line), hashes of the sample files (two lines)."""
HASHED = ("metrics", "samples")
"""The logs whose hashes a checkpoint stores. Timings are not among them, since nothing depends on them."""


def log_paths(layout: RunLayout) -> dict[str, Path]:
    """The paths of the logs (metrics, timings, sample hashes) of a run, by name."""
    return dict(zip(LOGS, (layout.metrics, layout.timings, layout.sample_hashes), strict=True))


class RunLogs:
    """The logs and samples of one run directory.

    A full disk does not stop training: `failures` counts failed writes, their data stay in memory, and the next write
    retries them. `state`, called before each checkpoint, raises `Storage` if data cannot be written.
    """

    def __init__(
        self,
        layout: RunLayout,
        *,
        trackers: Iterable[str] = (),
        load: Callable[[str], Any] | None = None,
        changes: Sequence[str] = (),
        disk: FileSystemOperations = DISK,
    ) -> None:
        self.failures = 0
        self.changes = tuple(changes)  # accepted differences between the logs and the checkpoint's hashes
        self._layout, self._disk, self._sinks = layout, disk, NamedTrackers(trackers, layout, load)
        self._paths = log_paths(layout)
        logs = {name: file_bytes(path) for name, path in self._paths.items()}
        self._sizes = {name: len(data) for name, data in logs.items()}
        self._hashes = {name: hashlib.sha256(logs[name]) for name in HASHED}
        self._lines: dict[str, bytes] = dict.fromkeys(LOGS, b"")  # not yet written
        self._samples: dict[Path, bytes] = {}  # not yet written
        self._torn: set[str] = set()  # logs that may end with an incomplete line

    @classmethod
    def resume(
        cls,
        layout: RunLayout,
        state: Mapping[str, Any],
        iteration: int,
        *,
        trackers: Iterable[str] = (),
        load: Callable[[str], Any] | None = None,
        changed: bool = False,
        notify: Callable[[str], None] = lambda text: None,
        disk: FileSystemOperations = DISK,
    ) -> "RunLogs":
        """Open the logs of a run that continues, and remove all entries after the checkpoint of `iteration`.

        `state` is the value of `state()` in that checkpoint; `{}` and 0 start empty logs. Raises `Storage`, before any
        change on disk, if metrics or samples differ from the checkpoint's. With `changed` the logs are accepted as
        they are and `changes` lists the differences. Missing sample files are passed to `notify`. `load`
        finds a user's tracker.
        """
        sizes, hashes = state.get("sizes", {}), state.get("hashes", {})
        changes: list[str] = []
        paths, samples = log_paths(layout), layout.samples
        with storage_errors("the logs", layout.run_directory):
            logs = {name: file_bytes(path) for name, path in paths.items()}
            valid = {name: data[: sizes.get(name, 0)].rfind(b"\n") + 1 for name, data in logs.items()}
            parse_lines(paths["metrics"], logs["metrics"][: valid["metrics"]])  # raises for a damaged line
            for name in HASHED:
                if not (difference := log_difference(logs[name], sizes.get(name, 0), hashes.get(name))):
                    continue
                if not changed:
                    what = f"{paths[name]} was changed after checkpoint {iteration} was saved"
                    fix = "restore the file from a backup, or accept the change: groupwise resume RUN --changed"
                    raise Storage(what, evidence=difference, fix=fix)
                changes.append(f"{paths[name].name}: {difference}")
            check_hashes(layout.run_directory, logs["samples"][: valid["samples"]], notify)
            for name, data in logs.items():
                if len(data) > valid[name]:
                    disk.truncate(paths[name], valid[name])
                    disk.sync(paths[name])
            later = [path for i, path in iteration_files(samples, (*SAMPLE_FILES, PICTURES)) if i > iteration]
            for path in [*sorted(samples.glob(f"{DRAFT}*")), *later]:
                disk.remove(path)
        return cls(layout, trackers=trackers, load=load, changes=changes, disk=disk)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each tracker that failed and is no longer used, with the reason."""
        return self._sinks.warnings

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Write one iteration's metrics. Numbers that are not finite become null; equal CPU runs write equal bytes."""
        self._sinks.write(line)
        self._append("metrics", json_line(line))

    def timings(self, line: Mapping[str, Any]) -> None:
        """Write numbers that depend on machine and time: clock, speed, memory."""
        self._sinks.write(line)
        self._append("timings", json_line(line))

    def samples(
        self, iteration: int, lines: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], pictures: bytes = b""
    ) -> None:
        """Write `samples/<iteration>.jsonl` (a line per sample) and `.safetensors` (numbers per token), atomically.

        `pictures` is a PNG file, written beside them; empty if there are none.
        """
        self._sinks.write_samples(iteration, lines)
        contents = (b"".join(json_line(line) for line in lines), tensor_bytes(tensors))
        files = {self._layout.sample_file(iteration, suffix): data for suffix, data in zip(SAMPLE_FILES, contents)}
        if pictures:
            files[self._layout.sample_file(iteration, PICTURES)] = pictures
        self._samples |= files
        names = {path: path.relative_to(self._layout.run_directory).as_posix() for path in files}
        self._append("samples", b"".join(hash_line(names[path], data) for path, data in files.items()))

    def state(self) -> dict[str, dict[str, Any]]:
        """Sync the logs, then return their sizes and hashes for the checkpoint. Raises `Storage`."""
        unwritten = sum(map(len, [*self._lines.values(), *self._samples.values()]))
        with storage_errors("the logs", self._layout.run_directory, unwritten):
            self._write_samples()
            for name in LOGS:
                self._write(name)
            for path in (*self._paths.values(), self._layout.run_directory):
                if path.exists():
                    self._disk.sync(path)
        return {"sizes": dict(self._sizes), "hashes": {name: h.hexdigest() for name, h in self._hashes.items()}}

    def close(self) -> None:
        """Try once more to write unwritten data, and close the trackers."""
        self._flush()
        self._sinks.close()

    def _append(self, name: str, data: bytes) -> None:
        self._lines[name] += data
        self._flush()

    def _flush(self) -> None:
        for write in (self._write_samples, *(lambda name=name: self._write(name) for name in LOGS)):
            try:
                write()
            except OSError:
                self.failures += 1

    def _write(self, name: str) -> None:
        path, lines = self._paths[name], self._lines[name]
        if name in self._torn:
            if path.exists():
                self._disk.truncate(path, self._sizes[name])
            self._torn.remove(name)
        if lines:
            self._torn.add(name)
            self._disk.append(path, lines)
            self._torn.remove(name)
            self._sizes[name] += len(lines)
            if name in self._hashes:
                self._hashes[name].update(lines)
            self._lines[name] = b""

    def _write_samples(self) -> None:
        if self._samples and not self._layout.samples.is_dir():
            self._disk.mkdir(self._layout.samples)
        for path, data in list(self._samples.items()):
            write_file(path, data, self._disk)
            del self._samples[path]
