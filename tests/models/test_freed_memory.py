"""Memory that glibc keeps goes back to the operating system."""

from pathlib import Path

import pytest

import groupwise.models.return_freed_memory as freed_memory
from groupwise.models.return_freed_memory import return_freed_memory


def resident() -> int:
    """The resident memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


GIB = 2**30


def freed_blocks() -> tuple[bytes, int]:
    """Free 100 MiB in small blocks below one that stays; returns it, and the resident memory before."""
    blocks = [b"x" * 65_000 for _ in range(1600)]  # each too small for a mapping of its own
    last, full = blocks.pop(), resident()
    del blocks[:]
    return last, full


@pytest.mark.skipif(freed_memory.GLIBC is None, reason="not glibc")
@pytest.mark.parametrize("always", [False, True])
def test_memory_is_returned_where_it_is_short_or_always(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    last, full = freed_blocks()
    monkeypatch.setattr(freed_memory, "available_memory", lambda: freed_memory.peak_memory() * 2)
    return_freed_memory()
    assert resident() > full - 60
    monkeypatch.setattr(freed_memory, "available_memory", lambda: freed_memory.peak_memory() * (2 if always else 0))
    return_freed_memory(always=always)
    assert resident() < full - 60 and len(last) == 65_000


def test_a_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "GLIBC", None)
    return_freed_memory(always=True)


@pytest.mark.parametrize(("limit", "expected"), [("max", 8 * GIB), (4 * GIB, 3 * GIB), (64 * GIB, 8 * GIB)])
def test_available_memory_is_that_of_the_machine_or_of_the_control_group(
    limit: str | int, expected: int, tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {8 * GIB >> 10} kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {GIB}\ninactive_file {GIB}\n")
    assert freed_memory.available_memory(meminfo, tmp_path) == expected


def test_available_memory_without_a_control_group(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {8 * GIB >> 10} kB\n")
    assert freed_memory.available_memory(meminfo, tmp_path / "none") == 8 * GIB


@pytest.mark.parametrize("content", [None, "", "MemAvailable: many kB\n", "MemAvailable:\n"])
def test_memory_that_is_not_reported_is_short(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    assert freed_memory.available_memory(tmp_path / "meminfo", tmp_path) == 0
