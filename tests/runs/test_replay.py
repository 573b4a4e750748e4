"""What environments answered outlives the process: torn lines, full disks, damage, and what is old."""

import errno
from pathlib import Path

import pytest

from groupwise.data import CountedText, Observation, Outcome, Replay, Verdict
from groupwise.runs.checkpoints import save_checkpoint
from groupwise.runs.disk import Disk
from groupwise.runs.replay import ReplayLog

REPLIES: list[Observation] = [
    "35;",
    "",
    "two\nlines \u2028 é\ud800",
    None,
    Verdict(Outcome.correct),
    Verdict(Outcome.wrong, 0.25, {"style": 0.5}, "nearly", answer="7"),
    Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 10 s"),
    CountedText("error: no call\n", calls=2, malformed=0.5),
]


def journal(run: Path, done: int = 0, **how: object) -> ReplayLog:
    return ReplayLog(run, lambda: done, **how)  # type: ignore[arg-type]


def test_every_kind_of_answer_comes_back(tmp_path: Path) -> None:
    first = journal(tmp_path)
    assert isinstance(first, Replay) and "0" not in first and not (tmp_path / "journal").exists()
    for i, reply in enumerate(REPLIES):
        first.write(str(i), reply)
    again = journal(tmp_path)
    assert [again[str(i)] for i in range(len(REPLIES)) if str(i) in again] == REPLIES
    told = again["7"]
    assert isinstance(told, CountedText) and told.counts == {"calls": 2, "malformed": 0.5}
    assert "8" not in again and "0" not in journal(tmp_path, 1)


def test_the_last_answer_to_a_question_counts(tmp_path: Path) -> None:
    for words in ("6", "7"):
        journal(tmp_path).write("q", words)
    assert journal(tmp_path)["q"] == "7"


def test_each_iteration_has_its_file(tmp_path: Path) -> None:
    done = -1
    one = ReplayLog(tmp_path, lambda: done)
    for done in (-1, 0, 1, 2):
        one.write("q", str(done))
    assert sorted(p.name for p in (tmp_path / "journal").iterdir()) == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]
    assert [journal(tmp_path, i)["q"] for i in (-1, 0, 1, 2)] == ["0", "0", "1", "2"]


def test_a_kill_at_any_byte_loses_at_most_the_line_that_was_being_written(tmp_path: Path) -> None:
    first = journal(tmp_path)
    for i in range(3):
        first.write(str(i), f"answer {i}")
    path = tmp_path / "journal" / "000000.jsonl"
    whole = path.read_bytes()
    lines = whole.count(b"\n")
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        again = journal(tmp_path)
        known = [str(i) in again for i in range(3)]
        assert sum(known) == whole[:size].count(b"\n") and known == sorted(known, reverse=True)
        again.write("new", "after")
        after = journal(tmp_path)
        assert after["new"] == "after" and [str(i) in after for i in range(3)] == known
    assert lines == 3


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe", b"[]", b"{}", b'{"question": "q"}', b'{"question": "q", "reply": 7}', b'"q"', b"[" * 100_000,
     b'{"question": "q", "reply": {"outcome": 9}}', b'{"question": "q", "reply": {"pickle": 1}}',
     b'{"question": "q", "reply": {"words": "6"}}',
     b'{"question": "q", "reply": {"words": "6", "counts": {"x": "1"}}}'],
)  # fmt: skip
def test_a_damaged_line_is_asked_again(tmp_path: Path, damage: bytes) -> None:
    first = journal(tmp_path)
    first.write("before", "1")
    path = tmp_path / "journal" / "000000.jsonl"
    path.write_bytes(path.read_bytes() + damage + b"\n")
    journal(tmp_path).write("after", "2")
    again = journal(tmp_path)
    assert (again["before"], again["after"], "q" in again) == ("1", "2", False)


class Full(Disk):
    """Takes half of what it is given, until there is room again."""

    room = False

    def append(self, path: Path, data: bytes) -> None:
        if not self.room:
            super().append(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().append(path, data)


def test_a_full_disk_ends_nothing_and_what_waits_is_written_later(tmp_path: Path) -> None:
    disk = Full()
    warned: list[str] = []
    one = ReplayLog(tmp_path, lambda: 0, warned.append, disk=disk)
    one.write("a", "1")
    one.write("b", "2")
    assert len(warned) == 1 and "No space left on device" in warned[0]
    assert "b" not in journal(tmp_path)
    disk.room = True
    one.write("c", "3")
    again = journal(tmp_path)
    assert [again[q] for q in "abc"] == ["1", "2", "3"]


def test_what_no_checkpoint_can_go_back_to_is_removed(tmp_path: Path) -> None:
    done = 0
    one = ReplayLog(tmp_path, lambda: done)
    for done in range(6):
        if done:
            save_checkpoint(tmp_path, done, {}, {}, keep=2)
        one.write("q", str(done))
    assert sorted(p.stem for p in (tmp_path / "journal").iterdir()) == ["000004", "000005"]
