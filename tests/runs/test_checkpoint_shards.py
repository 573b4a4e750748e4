"""Checkpoints in parts, which several ranks write: read as one, damaged parts, and parts that cannot be written."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.core import Storage, WorkerLost
from groupwise.runs.checkpoints import (
    OtherRankCheckpointShards,
    newest_checkpoint,
    save_checkpoint,
    shard_names,
    write_shard,
)
from groupwise.runs.run_layout import RunLayout

WHOLE = {"weight": torch.arange(35.0).reshape(7, 5), "bias": torch.arange(3.0), "step": torch.tensor(4)}


def part(rank: int, size: int) -> dict[str, torch.Tensor]:
    """The rows of a rank: ceil(rows / size) for the first ones. Rank 0 also has what has no rows."""
    rows = {name: x.split(-(-len(x) // size)) for name, x in WHOLE.items() if x.ndim}
    mine = {name: x[rank] if rank < len(x) else x[0][:0] for name, x in rows.items()}
    return mine | ({"step": WHOLE["step"]} if rank == 0 else {})


def save(run: Path, iteration: int, size: int) -> None:
    def write(draft: Path) -> dict[str, Mapping[str, Any]]:
        entries = [write_shard(draft, rank, size, part(rank, size)) for rank in range(1, size)]
        return {entry.pop("name"): entry for entry in entries}

    save_checkpoint(
        RunLayout(run), iteration, part(0, size), {}, keep=2, others=OtherRankCheckpointShards(size - 1, write)
    )


@pytest.mark.parametrize("size", (1, 2, 4))
def test_parts_are_read_as_one(tmp_path: Path, size: int) -> None:
    save(tmp_path, 3, size)
    checkpoint = newest_checkpoint(RunLayout(tmp_path))
    assert checkpoint is not None and set(shard_names(size)) <= {path.name for path in checkpoint.path.iterdir()}
    stored = checkpoint.tensors()
    assert set(stored) == set(WHOLE) and len(stored) == 3
    assert all(torch.equal(stored[name], x) for name, x in WHOLE.items())


@pytest.mark.t(50)
@pytest.mark.parametrize("number", (0, 1))
@pytest.mark.parametrize("damage", ("missing", "shorter", "changed"))
def test_a_damaged_part_damages_the_checkpoint(tmp_path: Path, number: int, damage: str) -> None:
    save(tmp_path, 1, 2)
    save(tmp_path, 2, 2)
    path = tmp_path / "checkpoints/000002" / shard_names(2)[number]
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "shorter" else data[:-1] + bytes([data[-1] ^ 1]))
    newest = newest_checkpoint(RunLayout(tmp_path))
    assert newest is not None and newest.iteration == 1
    assert (
        path.name in newest.skipped_checkpoint_warnings[0] and "using 000001" in newest.skipped_checkpoint_warnings[0]
    )
    with pytest.raises(Storage, match="000002 is damaged"):
        newest_checkpoint(RunLayout(tmp_path), strict=True)


@pytest.mark.parametrize("error", (OSError(errno.ENOSPC, "no space"), WorkerLost("rank 1 is gone", fix="resume")))
def test_a_part_that_cannot_be_written_leaves_the_previous_checkpoint(tmp_path: Path, error: Exception) -> None:
    save(tmp_path, 1, 2)

    def write(draft: Path) -> dict[str, Mapping[str, Any]]:
        write_shard(draft, 1, 2, part(1, 2))
        raise error

    expected = Storage if isinstance(error, OSError) else WorkerLost
    with pytest.raises(expected):
        save_checkpoint(RunLayout(tmp_path), 2, part(0, 2), {}, keep=2, others=OtherRankCheckpointShards(1, write))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["000001"]
    assert newest_checkpoint(RunLayout(tmp_path), strict=True) is not None
