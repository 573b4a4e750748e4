"""Memory that glibc keeps goes back to the operating system."""

from pathlib import Path

import pytest

import groupwise.models.freed_memory as freed_memory
from groupwise.models.freed_memory import return_freed_memory


def resident() -> int:
    """The resident memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


@pytest.mark.skipif(freed_memory.GLIBC is None, reason="not glibc")
def test_memory_below_a_block_that_is_in_use_is_returned() -> None:
    blocks = [b"x" * 65_000 for _ in range(1600)]  # 100 MiB, each too small for a mapping of its own
    last, full = blocks.pop(), resident()
    del blocks[:]
    return_freed_memory()
    assert resident() < full - 60 and len(last) == 65_000


def test_a_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "GLIBC", None)
    return_freed_memory()
