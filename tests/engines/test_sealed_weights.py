"""Weights in sealed memory: equal to the file's, immutable, freed with their last user; the file where it cannot be."""

import os
from pathlib import Path

import pytest
import torch

from groupwise.core import Storage
from groupwise.engines import EngineAccess, Served, WeightsFile, read_weights, write_weights
from groupwise.engines.remote import shared_memory_weights
from groupwise.engines.remote.shared_memory_weights import SEALED, can_seal
from groupwise.engines.remote.weights_file import seal_weights
from tests.engines.lines import weights
from tests.rollout.fakes import decoder


def test_they_have_the_bytes_of_the_file(tmp_path: Path) -> None:
    tensors = {**weights(decoder(torch.bfloat16)), "few": torch.arange(3)[1:2], "none": torch.zeros(0, 4)}
    file, memory = write_weights(tmp_path, 3, tensors), seal_weights(3, tensors)
    assert (memory.version, memory.sha256) == (3, SEALED) and memory.path.read_bytes() == file.path.read_bytes()
    here, there = read_weights(file.path, file.sha256), read_weights(memory.path, memory.sha256)
    assert here.keys() == there.keys() == tensors.keys()
    assert all(torch.equal(x, there[name]) and x.dtype == there[name].dtype for name, x in here.items())


def test_nobody_can_change_them_and_a_step_of_the_learner_does_not() -> None:
    model = decoder()
    memory = seal_weights(1, model.state_dict())
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(PermissionError):
        memory.path.write_bytes(b"other")
    with open(memory.path, "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"other")
    first = read_weights(memory.path, SEALED)
    with torch.no_grad():
        for x in model.parameters():
            x.add_(1)
    for x in first.values():
        x.zero_()  # an engine's own pages
    assert all(torch.equal(x, before[name]) for name, x in read_weights(memory.path, SEALED).items())


def test_memory_is_freed_when_the_last_engine_has_read_it() -> None:
    memory = seal_weights(1, weights(decoder()))
    path, read = memory.path, read_weights(memory.path, SEALED)
    inode = os.stat(path).st_ino
    memory.remove()
    assert os.stat(path).st_ino == inode, "an engine may be reading it"
    del memory
    assert not path.exists() or os.stat(path).st_ino != inode
    assert sum(x.abs().sum() for x in read.values()) > 0


def test_a_file_that_may_change_is_not_taken_for_memory(tmp_path: Path) -> None:
    file = write_weights(tmp_path, 1, weights(decoder()))
    open_memory = os.memfd_create("groupwise-test")
    os.write(open_memory, file.path.read_bytes())
    for path in (file.path, Path(f"/proc/self/fd/{open_memory}")):
        with pytest.raises(Storage, match="is not sealed memory"):
            read_weights(path, SEALED)
    os.close(open_memory)
    with pytest.raises(Storage, match="cannot be read"):
        read_weights(tmp_path / "none", SEALED)


def test_the_file_is_for_other_hosts_for_a_named_directory_and_for_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served, here = Served(), EngineAccess()
    assert served.publishes_in_memory(here, 1000)
    assert not served.publishes_in_memory(EngineAccess(exchange_directory="/dev/shm"), 1000)
    assert not Served(addresses=("engine.socket",)).publishes_in_memory(here, 1000)
    monkeypatch.setattr(shared_memory_weights, "available_memory", lambda: 6000)
    assert can_seal(1000) and not can_seal(1001)
    monkeypatch.delattr(os, "memfd_create")
    assert not can_seal(1)


def test_a_file_is_deleted_and_memory_is_not(tmp_path: Path) -> None:
    file = write_weights(tmp_path, 1, weights(decoder()))
    file.remove()
    file.remove()
    assert not file.path.exists() and isinstance(file, WeightsFile)
