"""The replay log: environments' replies on disk, from which a resumed run restores its conversations."""

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from groupwise.data import Observation, ReplyWithCounts, Verdict
from groupwise.data.rollout_json import from_json, to_json
from groupwise.runs.atomic_writes import DISK, FileSystemOperations
from groupwise.runs.checkpoints import finished_checkpoints
from groupwise.runs.json_lines import file_bytes, json_line, json_objects
from groupwise.runs.run_layout import RunLayout, iteration_files


class ReplyLogFile:
    """A run's log of environments' replies, `replay/<iteration>.jsonl`: each line has a key (`question`) and a reply.

    `now` returns the number of finished iterations. Files from before the oldest checkpoint are removed. A line that
    cannot be written stays in memory until the next write; `notify` is called once. Lines that the disk still refuses
    at the end of their iteration are dropped, and `notify` is called again: only a resume from an earlier checkpoint
    would read them. Lines are not synced: they survive the end of the process, not a power cut. The environment is
    called again for a lost or damaged line.
    """

    def __init__(
        self,
        layout: RunLayout,
        now: Callable[[], int],
        notify: Callable[[str], None] = lambda text: None,
        *,
        disk: FileSystemOperations = DISK,
    ) -> None:
        self._layout, self._now, self._notify, self._disk = layout, now, notify, disk
        self._iteration = -1
        self._observations: dict[str, Any] = {}
        self._unwritten, self._size, self._torn, self._warned = b"", 0, False, False

    def __contains__(self, question: str) -> bool:
        self._open_iteration()
        return question in self._observations

    def __getitem__(self, question: str) -> Observation:
        self._open_iteration()
        return observation_from_json(self._observations[question])

    def write(self, question: str, reply: Observation) -> None:
        """Write one reply of an environment. If the disk refuses it, it is kept in memory for the next write."""
        self._open_iteration()
        self._unwritten += json_line({"question": question, "reply": observation_to_json(reply)})
        try:
            self._flush()
        except OSError as error:
            if not self._warned:
                why = f"{error.strerror} ({error.filename or self._path})"
                self._notify(f"warning: observations could not be written: {why}; they are kept in memory")
            self._warned = True

    @property
    def _path(self) -> Path:
        return self._layout.replay_log(self._iteration)

    def _open_iteration(self) -> None:
        """Switch to the file of the current iteration and read it; delete files older than every checkpoint."""
        iteration = max(self._now(), 0)
        if iteration == self._iteration:
            return
        if self._unwritten:
            try:
                self._flush()
            except OSError:
                lost = self._unwritten.count(b"\n")
                self._notify(
                    f"warning: {lost} observations of {self._path.name} may be lost: a resume asks for them again"
                )
        oldest = min((i for i, _, _ in finished_checkpoints(self._layout.checkpoints)), default=0)
        for i, path in iteration_files(self._layout.replay, (".jsonl",)):
            if i < oldest:
                with suppress(OSError):
                    self._disk.remove(path)
        self._iteration, self._unwritten = iteration, b""
        content = file_bytes(self._path)
        self._size = content.rfind(b"\n") + 1
        self._torn = self._size < len(content)
        entries = (entry for _, entry in json_objects(io.BytesIO(content)))
        self._observations = dict(pair for entry in entries if entry and (pair := _pair(entry)))

    def _flush(self) -> None:
        if not self._path.parent.is_dir():
            self._disk.mkdir(self._path.parent)
        if self._torn and self._path.exists():
            self._disk.truncate(self._path, self._size)
        self._torn = True  # until the append has finished
        self._disk.append(self._path, self._unwritten)
        self._torn = False
        self._size += len(self._unwritten)
        self._unwritten = b""


def _pair(entry: dict[str, Any]) -> tuple[str, Any] | None:
    """The key (`question`) and the environment's reply in a line of the log; None if the line is invalid."""
    try:
        question, reply = entry["question"], entry["reply"]
        observation_from_json(reply)
    except (ValueError, KeyError, TypeError):
        return None
    return str(question), reply


def observation_to_json(reply: Observation) -> Any:
    """Encode an environment's reply as a JSON value: text, text with counts, null, or the fields of a verdict.

    >>> observation_to_json("35"), observation_to_json(None)
    ('35', None)
    >>> from groupwise.data import Outcome, Verdict
    >>> observation_from_json(observation_to_json(Verdict(Outcome.correct))).outcome.name
    'correct'
    """
    if isinstance(reply, ReplyWithCounts) and reply.counts:
        return {"words": str(reply), "counts": dict(reply.counts)}
    return to_json(reply) if isinstance(reply, Verdict) else reply


def observation_from_json(plain: Any) -> Observation:
    """Decode an environment's reply from JSON. Raises ValueError, TypeError or KeyError for any other value."""
    if plain is None or isinstance(plain, str):
        return plain
    if "words" in plain:
        return ReplyWithCounts(str(plain["words"]), **plain["counts"])
    return from_json(Verdict, plain)
