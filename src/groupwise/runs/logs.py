"""Metrics, timings and samples of a run, written while it runs. A resumed run continues the same files."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from groupwise.data import Storage
from groupwise.runs.checkpoints import tensor_bytes
from groupwise.runs.disk import DISK, DRAFT, Disk, storage_errors, write_file
from groupwise.runs.hashes import check_hashes, hash_line, log_difference
from groupwise.runs.trackers import Sinks

LOGS = {"metrics": "metrics.jsonl", "timings": "timings.jsonl", "samples": "samples.sha256"}
"""Files that grow line by line. `samples.sha256` lists the SHA-256 of each file in samples/, in `sha256sum` format."""
HASHED = ("metrics", "samples")
"""The logs whose hashes a checkpoint stores. Nothing depends on the timings."""


class RunLogs:
    """The logs and samples of one run directory.

    A full disk does not stop training: `failures` counts failed writes, their data stay in memory, and the next write
    retries them. `state`, called before each checkpoint, raises `Storage` if data cannot be written.
    """

    def __init__(self, run: Path, *, sinks: Iterable[str] = (), changes: Sequence[str] = (), disk: Disk = DISK) -> None:
        self.failures = 0
        self.changes = tuple(changes)  # accepted differences between the logs and the checkpoint's hashes
        self._run, self._disk, self._sinks = run, disk, Sinks(sinks, run)
        logs = {name: file_bytes(run / file) for name, file in LOGS.items()}
        self._sizes = {name: len(data) for name, data in logs.items()}
        self._hashes = {name: hashlib.sha256(logs[name]) for name in HASHED}
        self._lines = dict.fromkeys(LOGS, b"")  # not yet written
        self._samples: dict[str, bytes] = {}  # not yet written
        self._torn: set[str] = set()  # logs that may end with an incomplete line

    @classmethod
    def resume(
        cls,
        run: Path,
        state: Mapping[str, Any],
        iteration: int,
        *,
        sinks: Iterable[str] = (),
        changed: bool = False,
        warn: Callable[[str], None] = lambda text: None,
        disk: Disk = DISK,
    ) -> "RunLogs":
        """The logs as of the checkpoint of `iteration`: later lines and samples are removed, and the run rewrites them.

        `state` is the value of `state()` in that checkpoint; `{}` and 0 start empty logs. Raises `Storage`, before any
        change on disk, if metrics or samples differ from the checkpoint's. With `changed` the logs are accepted as
        they are and `changes` lists the differences. Missing sample files are passed to `warn`.
        """
        sizes, hashes = state.get("sizes", {}), state.get("hashes", {})
        changes: list[str] = []
        with storage_errors("the logs", run):
            logs = {name: file_bytes(run / file) for name, file in LOGS.items()}
            valid = {name: data[: sizes.get(name, 0)].rfind(b"\n") + 1 for name, data in logs.items()}
            parse_lines(run / LOGS["metrics"], logs["metrics"][: valid["metrics"]])  # raises for a damaged line
            for name in HASHED:
                if not (difference := log_difference(logs[name], sizes.get(name, 0), hashes.get(name))):
                    continue
                if not changed:
                    what = f"{run / LOGS[name]} was changed after checkpoint {iteration} was saved"
                    fix = "restore the file from a backup, or accept the change: groupwise resume RUN --changed"
                    raise Storage(what, evidence=difference, fix=fix)
                changes.append(f"{LOGS[name]}: {difference}")
            check_hashes(run, logs["samples"][: valid["samples"]], warn)
            for name, data in logs.items():
                if len(data) > valid[name]:
                    disk.truncate(run / LOGS[name], valid[name])
                    disk.sync(run / LOGS[name])
            for path in sorted((run / "samples").glob("*")):
                name = re.fullmatch(r"(\d{6,})\.(jsonl|safetensors)", path.name)
                if path.name.startswith(DRAFT) or (name and int(name[1]) > iteration):
                    disk.remove(path)
        return cls(run, sinks=sinks, changes=changes, disk=disk)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each sink that failed and is no longer used, with the reason."""
        return self._sinks.warnings

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Write one iteration's metrics. Numbers that are not finite become null; equal runs write equal bytes."""
        self._sinks.write(line)
        self._append("metrics", json_line(line))

    def timings(self, line: Mapping[str, Any]) -> None:
        """Write numbers that depend on machine and time: clock, speed, memory."""
        self._append("timings", json_line(line))

    def samples(self, iteration: int, lines: Iterable[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
        """Write `samples/<iteration>.jsonl`, a line per sample, and `.safetensors`, numbers per token."""
        files = {
            f"{iteration:06d}.jsonl": b"".join(json_line(line) for line in lines),
            f"{iteration:06d}.safetensors": tensor_bytes(tensors),
        }
        self._samples |= files
        self._append("samples", b"".join(hash_line(f"samples/{name}", data) for name, data in files.items()))

    def state(self) -> dict[str, dict[str, Any]]:
        """Sync the logs, then return their sizes and hashes for the checkpoint. Raises `Storage`."""
        unwritten = sum(map(len, [*self._lines.values(), *self._samples.values()]))
        with storage_errors("the logs", self._run, unwritten):
            self._write_samples()
            for name in LOGS:
                self._write(name)
            for path in (*(self._run / file for file in LOGS.values()), self._run):
                if path.exists():
                    self._disk.sync(path)
        return {"sizes": dict(self._sizes), "hashes": {name: h.hexdigest() for name, h in self._hashes.items()}}

    def close(self) -> None:
        """Retry unwritten data once, and close the sinks."""
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
        path, lines = self._run / LOGS[name], self._lines[name]
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
        home = self._run / "samples"
        if self._samples and not home.is_dir():
            self._disk.mkdir(home)
        for name, data in list(self._samples.items()):
            write_file(home / name, data, self._disk)
            del self._samples[name]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; an empty list if it is missing. An incomplete last line is left out.

    A line is complete with its newline. Raises `Storage` for a damaged complete line.
    """
    return parse_lines(path, file_bytes(path))


def parse_lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The objects in the complete lines of `data`, the content of the file `path`."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            fix = "restore the file from a backup, or delete the line"
            raise Storage(f"line {number} of {path} is damaged", evidence=repr(text[:80]), fix=fix)
        lines.append(line)
    return lines


def file_bytes(path: Path) -> bytes:
    """The content of a file; empty if it is missing."""
    return path.read_bytes() if path.exists() else b""


def json_line(line: Mapping[str, Any]) -> bytes:
    """One line of JSON with keys in the given order. ASCII, so that no character is taken for a line end.

    >>> json_line({"loss": math.nan, "reward": 0.1, "text": "é\\n"})
    b'{"loss": null, "reward": 0.1, "text": "\\\\u00e9\\\\n"}\\n'
    """
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """The same value with None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
