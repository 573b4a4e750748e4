"""The replay log: torn lines, full disks, damaged lines, and removal of old files."""

import errno
from pathlib import Path

import pytest

from groupwise.data import EnvironmentReplyLog, Observation, Outcome, ReplyWithCounts, Verdict
from groupwise.runs.atomic_writes import FileSystemOperations
from groupwise.runs.checkpoints import save_checkpoint
from groupwise.runs.environment_reply_log import ReplyLogFile
from groupwise.runs.run_layout import RunLayout

REPLIES: list[Observation] = [
    "35;",
    "",
    "two\nlines \u2028 é\ud800",
    None,
    Verdict(Outcome.correct),
    Verdict(Outcome.wrong, 0.25, {"style": 0.5}, "nearly", answer="7"),
    Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 10 s"),
    ReplyWithCounts("error: no call\n", calls=2, malformed=0.5),
]


def replay_log(run: Path, done: int = 0, **options: object) -> ReplyLogFile:
    return ReplyLogFile(RunLayout(run), lambda: done, **options)  # type: ignore[arg-type]


def test_every_kind_of_observation_reads_back(tmp_path: Path) -> None:
    log = replay_log(tmp_path)
    assert isinstance(log, EnvironmentReplyLog) and "0" not in log and not (tmp_path / "replay").exists()
    for i, reply in enumerate(REPLIES):
        log.write(str(i), reply)
    again = replay_log(tmp_path)
    assert [again[str(i)] for i in range(len(REPLIES)) if str(i) in again] == REPLIES
    counted = again["7"]
    assert isinstance(counted, ReplyWithCounts) and counted.counts == {"calls": 2, "malformed": 0.5}
    assert "8" not in again and "0" not in replay_log(tmp_path, 1)


def test_the_last_observation_of_a_question_counts(tmp_path: Path) -> None:
    for words in ("6", "7"):
        replay_log(tmp_path).write("q", words)
    assert replay_log(tmp_path)["q"] == "7"


def test_each_iteration_has_a_file(tmp_path: Path) -> None:
    done = -1
    log = ReplyLogFile(RunLayout(tmp_path), lambda: done)
    for done in (-1, 0, 1, 2):
        log.write("q", str(done))
    assert sorted(p.name for p in (tmp_path / "replay").iterdir()) == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]
    assert [replay_log(tmp_path, i)["q"] for i in (-1, 0, 1, 2)] == ["0", "0", "1", "2"]


def test_a_kill_at_any_byte_loses_at_most_the_last_line(tmp_path: Path) -> None:
    log = replay_log(tmp_path)
    for i in range(3):
        log.write(str(i), f"answer {i}")
    path = tmp_path / "replay" / "000000.jsonl"
    content = path.read_bytes()
    lines = content.count(b"\n")
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        again = replay_log(tmp_path)
        present = [str(i) in again for i in range(3)]
        assert sum(present) == content[:size].count(b"\n") and present == sorted(present, reverse=True)
        again.write("new", "after")
        after = replay_log(tmp_path)
        assert after["new"] == "after" and [str(i) in after for i in range(3)] == present
    assert lines == 3


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe", b"[]", b"{}", b'{"question": "q"}', b'{"question": "q", "reply": 7}', b'"q"', b"[" * 100_000,
     b'{"question": "q", "reply": {"outcome": 9}}', b'{"question": "q", "reply": {"pickle": 1}}',
     b'{"question": "q", "reply": {"words": "6"}}',
     b'{"question": "q", "reply": {"words": "6", "counts": {"x": "1"}}}'],
)  # fmt: skip
def test_a_damaged_line_is_ignored(tmp_path: Path, damage: bytes) -> None:
    log = replay_log(tmp_path)
    log.write("before", "1")
    path = tmp_path / "replay" / "000000.jsonl"
    path.write_bytes(path.read_bytes() + damage + b"\n")
    replay_log(tmp_path).write("after", "2")
    again = replay_log(tmp_path)
    assert (again["before"], again["after"], "q" in again) == ("1", "2", False)


class Full(FileSystemOperations):
    """Writes half of the data and raises ENOSPC until `room` is True."""

    room = False

    def append(self, path: Path, data: bytes) -> None:
        if not self.room:
            super().append(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().append(path, data)


def test_a_full_disk_raises_nothing_and_the_lines_are_written_later(tmp_path: Path) -> None:
    disk = Full()
    warnings: list[str] = []
    log = ReplyLogFile(RunLayout(tmp_path), lambda: 0, warnings.append, disk=disk)
    log.write("a", "1")
    log.write("b", "2")
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
    assert "b" not in replay_log(tmp_path)
    disk.room = True
    log.write("c", "3")
    again = replay_log(tmp_path)
    assert [again[q] for q in "abc"] == ["1", "2", "3"]


def test_lines_that_the_disk_refuses_until_the_end_of_their_iteration_are_named(tmp_path: Path) -> None:
    disk, warnings, done = Full(), list[str](), 0
    log = ReplyLogFile(RunLayout(tmp_path), lambda: done, warnings.append, disk=disk)
    log.write("a", "1")
    log.write("b", "2")
    done = 1
    assert "a" not in log
    assert warnings[1:] == ["warning: 2 observations of 000000.jsonl may be lost: a resume asks for them again"]
    disk.room = True
    log.write("c", "3")
    assert "c" in ReplyLogFile(RunLayout(tmp_path), lambda: 1)


def test_files_older_than_the_oldest_checkpoint_are_removed(tmp_path: Path) -> None:
    done = 0
    log = ReplyLogFile(RunLayout(tmp_path), lambda: done)
    for done in range(6):
        if done:
            save_checkpoint(RunLayout(tmp_path), done, {}, {}, keep=2)
        log.write("q", str(done))
    assert sorted(p.stem for p in (tmp_path / "replay").iterdir()) == ["000004", "000005"]
