"""What environments answered, on the disk before anybody acts on it, so that a killed run hears it again."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groupwise.data import CountedText, Observation, Outcome, Verdict
from groupwise.runs.checkpoints import stored
from groupwise.runs.disk import DISK, Disk


class ReplayLog:
    """The `Replay` of a run: `journal/<iteration>.jsonl`, a line an answer; the last of those to one question counts.

    `now` says how many iterations are done. Files from before the oldest checkpoint are removed. Lines that cannot be
    written wait for the next, and `warn` hears of it once. They are not forced to the platter: they outlive the
    process, not a power cut. What was lost, or cannot be read, is asked again.
    """

    def __init__(
        self, run: Path, now: Callable[[], int], warn: Callable[[str], None] = lambda text: None, *, disk: Disk = DISK
    ) -> None:
        self._run, self._now, self._warn, self._disk = run, now, warn, disk
        self._iteration = -1
        self._heard: dict[str, Any] = {}
        self._waiting, self._whole, self._torn, self._warned = b"", 0, False, False

    def __contains__(self, question: str) -> bool:
        self._turn()
        return question in self._heard

    def __getitem__(self, question: str) -> Observation:
        self._turn()
        return read_reply(self._heard[question])

    def write(self, question: str, reply: Observation) -> None:
        """The answer is on the disk, or waits to be, when this returns."""
        self._turn()
        self._waiting += json.dumps({"question": question, "reply": plain_reply(reply)}).encode() + b"\n"
        try:
            self._flush()
        except OSError as error:
            if not self._warned:
                why = f"{error.strerror} ({error.filename or self._path})"
                self._warn(f"warning: what environments answer could not be written: {why}; it waits in memory")
            self._warned = True

    @property
    def _path(self) -> Path:
        return self._run / "journal" / f"{self._iteration:06d}.jsonl"

    def _turn(self) -> None:
        """To the file of the iteration that is under way."""
        iteration = max(self._now(), 0)
        if iteration == self._iteration:
            return
        if self._waiting:
            with suppress(OSError):
                self._flush()
        oldest = min((i for i, _, _ in stored(self._run / "checkpoints")), default=0)
        for path in (self._run / "journal").glob("*.jsonl"):
            if path.stem.isdecimal() and int(path.stem) < oldest:
                with suppress(OSError):
                    self._disk.remove(path)
        self._iteration, self._waiting = iteration, b""
        said = self._path.read_bytes() if self._path.is_file() else b""
        self._whole = said.rfind(b"\n") + 1
        self._torn = self._whole < len(said)
        self._heard = dict(pair for line in said[: self._whole].splitlines() if (pair := _pair(line)))

    def _flush(self) -> None:
        if not self._path.parent.is_dir():
            self._disk.mkdir(self._path.parent)
        if self._torn and self._path.exists():
            self._disk.truncate(self._path, self._whole)
        self._torn = True  # until the whole of it is there
        self._disk.append(self._path, self._waiting)
        self._torn = False
        self._whole += len(self._waiting)
        self._waiting = b""


def _pair(line: bytes) -> tuple[str, Any] | None:
    """A question and its answer; None for a line that is damaged."""
    try:
        said = json.loads(line)
        question, reply = said["question"], said["reply"]
        read_reply(reply)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return str(question), reply


def plain_reply(reply: Observation) -> Any:
    """An answer as JSON has it: text, text with its counts, null, or the fields of a verdict.

    >>> plain_reply("35"), plain_reply(None), read_reply(plain_reply(Verdict(Outcome.correct))).outcome.name
    ('35', None, 'correct')
    """
    if isinstance(reply, CountedText) and reply.counts:
        return {"words": str(reply), "counts": dict(reply.counts)}
    return asdict(reply) if isinstance(reply, Verdict) else reply


def read_reply(plain: Any) -> Observation:
    """The answer that JSON has; ValueError, TypeError or KeyError for what is none."""
    if plain is None or isinstance(plain, str):
        return plain
    if "words" in plain:
        return CountedText(str(plain["words"]), **plain["counts"])
    return Verdict(**{**plain, "outcome": Outcome(plain["outcome"])})
