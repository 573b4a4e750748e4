"""What a run writes down as it goes: metrics, timings and samples. A resumed run continues them without a seam."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from groupwise.data import Storage
from groupwise.train.sinks import Sinks
from groupwise.train.store import DISK, Disk, packed, storing

LOGS: tuple[str, ...] = ("metrics", "timings")


class Record:
    """The logs and samples of one run directory.

    A full disk does not stop training: `failures` counts the writes that failed, what they should have written stays
    in memory and is tried again with the next one. `sizes`, asked before each checkpoint, raises if any still waits.
    """

    def __init__(self, run: Path, *, sinks: Iterable[str] = (), disk: Disk = DISK) -> None:
        self.failures = 0
        self._run, self._disk, self._sinks = run, disk, Sinks(sinks, run)
        self._sizes = {name: length(run / f"{name}.jsonl") for name in LOGS}
        self._lines = dict.fromkeys(LOGS, b"")  # not yet written
        self._samples: dict[str, bytes] = {}  # not yet written
        self._torn: set[str] = set()  # logs that may end in half a line

    @classmethod
    def resume(
        cls, run: Path, sizes: Mapping[str, int], iteration: int, *, sinks: Iterable[str] = (), disk: Disk = DISK
    ) -> "Record":
        """The record as it stood at the checkpoint of `iteration`: what came later is cut off and will come again.

        `sizes` is what `sizes()` gave to that checkpoint; `{}` and 0 begin anew.
        """
        with storing("the record", run):
            for name in LOGS:
                path, wanted, size = run / f"{name}.jsonl", sizes.get(name, 0), length(run / f"{name}.jsonl")
                if size < wanted:
                    raise Storage(
                        f"{path} is shorter than when checkpoint {iteration} was saved",
                        evidence=f"{size} bytes; the checkpoint remembers {wanted}",
                        fix=f"bring the file back from a copy, or remove checkpoint {iteration} to use the one before",
                    )
                if size > wanted:
                    disk.truncate(path, wanted)
                    disk.sync(path)
            for path in sorted((run / "samples").glob("*")):
                name = re.fullmatch(r"(\d{6,})\.(jsonl|safetensors)", path.name)
                if path.name.startswith(".writing-") or (name and int(name[1]) > iteration):
                    disk.remove(path)
        return cls(run, sinks=sinks, disk=disk)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sinks that were given up, with the reason."""
        return self._sinks.warnings

    def metrics(self, line: Mapping[str, Any]) -> None:
        """One iteration's numbers. Those that are not finite become null; equal runs write equal bytes."""
        self._sinks.write(line)
        self._append("metrics", line)

    def timings(self, line: Mapping[str, Any]) -> None:
        """What depends on the machine and the hour: clock, speed, memory."""
        self._append("timings", line)

    def samples(self, iteration: int, lines: Iterable[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
        """`samples/<iteration>.jsonl`, a line a sample, and `.safetensors`, the numbers of tokens; whole or absent."""
        self._samples[f"{iteration:06d}.jsonl"] = b"".join(json_line(line) for line in lines)
        self._samples[f"{iteration:06d}.safetensors"] = packed(tensors)
        self._flush()

    def sizes(self) -> dict[str, int]:
        """Bytes of the logs, for the checkpoint to remember, all of them on the platter. Raises `Storage`."""
        waiting = sum(map(len, [*self._lines.values(), *self._samples.values()]))
        with storing("the record", self._run, waiting):
            for name in (*LOGS, "samples"):
                self._write(name)
            for path in (*(self._run / f"{name}.jsonl" for name in LOGS), self._run / "samples", self._run):
                if path.exists():
                    self._disk.sync(path)
        return dict(self._sizes)

    def close(self) -> None:
        """Try what waits once more, and end the sinks."""
        self._flush()
        self._sinks.close()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        self._lines[name] += json_line(line)
        self._flush()

    def _flush(self) -> None:
        for name in (*LOGS, "samples"):
            try:
                self._write(name)
            except OSError:
                self.failures += 1

    def _write(self, name: str) -> None:
        if name == "samples":
            self._write_samples()
            return
        path, lines = self._run / f"{name}.jsonl", self._lines[name]
        if name in self._torn:
            if path.exists():
                self._disk.truncate(path, self._sizes[name])
            self._torn.remove(name)
        if lines:
            self._torn.add(name)
            self._disk.append(path, lines)
            self._torn.remove(name)
            self._sizes[name] += len(lines)
            self._lines[name] = b""

    def _write_samples(self) -> None:
        home = self._run / "samples"
        if self._samples and not home.is_dir():
            self._disk.mkdir(home)
        for name, data in list(self._samples.items()):
            draft = home / f".writing-{name}"
            try:
                self._disk.write(draft, data)
                self._disk.sync(draft)
                self._disk.replace(draft, home / name)
            except OSError:
                with suppress(OSError):  # the first refusal is the one to tell
                    self._disk.remove(draft)
                raise
            del self._samples[name]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; none if it is missing. A last line that was torn is left out.

    A line counts once its newline is there. Raises `Storage` for a damaged line further up.
    """
    if not path.exists():
        return []
    whole = path.read_bytes().split(b"\n")[:-1]
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


def length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


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
