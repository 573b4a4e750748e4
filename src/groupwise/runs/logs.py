"""What a run writes down as it goes: metrics, timings and samples. A resumed run continues them without a seam."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from groupwise.data import Storage
from groupwise.runs.checkpoints import packed
from groupwise.runs.disk import DISK, DRAFT, Disk, storing, write_file
from groupwise.runs.sums import changed_since, check_files, sum_line
from groupwise.runs.trackers import Sinks

LOGS = {"metrics": "metrics.jsonl", "timings": "timings.jsonl", "samples": "samples.sha256"}
"""The files that grow line by line. The last has the SHA-256 of each file of samples/, as `sha256sum` writes it."""
HASHED = ("metrics", "samples")
"""The logs whose content a checkpoint vouches for. Timings are never needed."""


class RunLogs:
    """The logs and samples of one run directory.

    A full disk does not stop training: `failures` counts the writes that failed, what they should have written stays
    in memory and is tried again with the next one. `state`, asked before each checkpoint, raises if any still waits.
    """

    def __init__(self, run: Path, *, sinks: Iterable[str] = (), changes: Sequence[str] = (), disk: Disk = DISK) -> None:
        self.failures = 0
        self.changes = tuple(changes)  # what was accepted although it is not what a checkpoint remembers
        self._run, self._disk, self._sinks = run, disk, Sinks(sinks, run)
        logs = {name: content(run / file) for name, file in LOGS.items()}
        self._sizes = {name: len(data) for name, data in logs.items()}
        self._hashes = {name: hashlib.sha256(logs[name]) for name in HASHED}
        self._lines = dict.fromkeys(LOGS, b"")  # not yet written
        self._samples: dict[str, bytes] = {}  # not yet written
        self._torn: set[str] = set()  # logs that may end in half a line

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
        """The record as it stood at the checkpoint of `iteration`: what came later is cut off and will come again.

        `state` is what `state()` gave to that checkpoint; `{}` and 0 begin anew. Raises `Storage`, before anything is
        altered, for metrics or samples that are not those of the checkpoint. With `changed`, logs are taken as they
        are, and `changes` says so. Missing samples are passed to `warn`.
        """
        sizes, hashes = state.get("sizes", {}), state.get("hashes", {})
        changes: list[str] = []
        with storing("the record", run):
            logs = {name: content(run / file) for name, file in LOGS.items()}
            kept = {name: data[: sizes.get(name, 0)].rfind(b"\n") + 1 for name, data in logs.items()}
            parsed(run / LOGS["metrics"], logs["metrics"][: kept["metrics"]])  # names a line that is damaged
            for name in HASHED:
                if not (difference := changed_since(logs[name], sizes.get(name, 0), hashes.get(name))):
                    continue
                if not changed:
                    what = f"{run / LOGS[name]} is not what it was when checkpoint {iteration} was saved"
                    fix = "bring the file back from a copy, or go on with it as it is: groupwise resume RUN --changed"
                    raise Storage(what, evidence=difference, fix=fix)
                changes.append(f"{LOGS[name]}: {difference}")
            check_files(run, logs["samples"][: kept["samples"]], warn)
            for name, data in logs.items():
                if len(data) > kept[name]:
                    disk.truncate(run / LOGS[name], kept[name])
                    disk.sync(run / LOGS[name])
            for path in sorted((run / "samples").glob("*")):
                name = re.fullmatch(r"(\d{6,})\.(jsonl|safetensors)", path.name)
                if path.name.startswith(DRAFT) or (name and int(name[1]) > iteration):
                    disk.remove(path)
        return cls(run, sinks=sinks, changes=changes, disk=disk)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sinks that were given up, with the reason."""
        return self._sinks.warnings

    def metrics(self, line: Mapping[str, Any]) -> None:
        """One iteration's numbers. Those that are not finite become null; equal runs write equal bytes."""
        self._sinks.write(line)
        self._append("metrics", json_line(line))

    def timings(self, line: Mapping[str, Any]) -> None:
        """What depends on the machine and the hour: clock, speed, memory."""
        self._append("timings", json_line(line))

    def samples(self, iteration: int, lines: Iterable[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
        """`samples/<iteration>.jsonl`, a line a sample, and `.safetensors`, the numbers of tokens; whole or absent."""
        files = {
            f"{iteration:06d}.jsonl": b"".join(json_line(line) for line in lines),
            f"{iteration:06d}.safetensors": packed(tensors),
        }
        self._samples |= files
        self._append("samples", b"".join(sum_line(f"samples/{name}", data) for name, data in files.items()))

    def state(self) -> dict[str, dict[str, Any]]:
        """Bytes and hashes of the logs, for the checkpoint to remember, all on the platter. Raises `Storage`."""
        waiting = sum(map(len, [*self._lines.values(), *self._samples.values()]))
        with storing("the record", self._run, waiting):
            self._write_samples()
            for name in LOGS:
                self._write(name)
            for path in (*(self._run / file for file in LOGS.values()), self._run):
                if path.exists():
                    self._disk.sync(path)
        return {"sizes": dict(self._sizes), "hashes": {name: h.hexdigest() for name, h in self._hashes.items()}}

    def close(self) -> None:
        """Try what waits once more, and end the sinks."""
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
    """The objects of a JSON-lines file; none if it is missing. A last line that was torn is left out.

    A line counts once its newline is there. Raises `Storage` for a damaged line further up.
    """
    return parsed(path, content(path))


def parsed(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The objects in the whole lines of `data`, which is content of the file `path`."""
    whole = data.split(b"\n")[:-1]
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            fix = "bring the file back from a copy, or take the line out"
            raise Storage(f"line {number} of {path} is damaged", evidence=repr(text[:80]), fix=fix)
        lines.append(line)
    return lines


def content(path: Path) -> bytes:
    """All of a file; nothing if it is missing."""
    return path.read_bytes() if path.exists() else b""


def json_line(line: Mapping[str, Any]) -> bytes:
    """One line of JSON, in the order of its keys; ASCII, so that nothing in it looks like the end of a line.

    >>> json_line({"loss": math.nan, "reward": 0.1, "text": "é\\n"})
    b'{"loss": null, "reward": 0.1, "text": "\\\\u00e9\\\\n"}\\n'
    """
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """The same value with null for each number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
