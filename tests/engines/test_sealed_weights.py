"""Weights in sealed memory: equal to the file's, immutable, freed with their version; the file where it cannot be."""

import gc
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from groupwise.core import Storage
from groupwise.engines import (
    EngineAccess,
    Fleet,
    NativeEngine,
    RemoteEngine,
    Served,
    WeightsFile,
    WeightsFilesDirectory,
    WeightsProbe,
    read_weights,
    write_weights,
)
from groupwise.engines.remote import shared_memory_weights
from groupwise.engines.remote.shared_memory_weights import SEALED, can_seal
from groupwise.engines.remote.weights_file import seal_weights
from groupwise.models import Decoder
from tests.engines.lines import blank, changed, remote, run, weights
from tests.rollout.fakes import decoder, without_end_token


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


def test_memory_is_freed_and_an_engine_keeps_what_it_has_mapped() -> None:
    memory = seal_weights(1, weights(decoder()))
    read, inode = read_weights(memory.path, SEALED), os.stat(memory.path).st_ino
    memory.remove()
    memory.remove()
    assert inode not in sealed_memory(1).values()
    assert sum(x.abs().sum() for x in read.values()) > 0, "an engine has mapped it"


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_the_memory_of_a_version_ends_with_the_next_one_though_an_engine_failed(tmp_path: Path) -> None:
    """Frames of the error, which names the cause of a later loss, too, refer to the weights that it loaded."""
    model = decoder()
    starts: list[int] = []

    class Fails(NativeEngine):
        async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
            raise MemoryError("no room for the weights")

    def start(number: int) -> Awaitable[RemoteEngine]:
        starts.append(number)
        return remote(blank(Fails if len(starts) == 1 else NativeEngine))

    async def go() -> None:
        group = in_memory_fleet(tmp_path, model, start)
        await group.load(101, weights(model))
        assert len(starts) == 2 and len(sealed_memory(101)) == 1
        await group.load(102, changed(model))
        assert not sealed_memory(101) and len(sealed_memory(102)) == 1

    run(go())
    assert not sealed_memory(102), "the engines ended with their event loop"


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_fleet_without_engines_keeps_no_memory(tmp_path: Path) -> None:
    model = decoder()
    fleets: list[Fleet] = []

    async def start(number: int) -> RemoteEngine:
        raise Storage("no process starts")

    async def go() -> None:
        fleets.append(in_memory_fleet(tmp_path, model, start))
        for version in (201, 202):  # the second one comes when all engines are given up
            with pytest.raises(Storage, match="no engine is left"):
                await fleets[0].load(version, weights(model))
            assert not sealed_memory(version)

    run(go())


def in_memory_fleet(path: Path, model: Decoder, start: Callable[[int], Awaitable[RemoteEngine]]) -> Fleet:
    """A fleet of one engine, which maps the weights."""
    probe = WeightsProbe(model, without_end_token(), 1e-3)
    exchange = WeightsFilesDirectory(path)
    return Fleet(start, 1, exchange=exchange, probe=probe, max_num_seqs=8, restarts=1, in_memory=True)


def sealed_memory(version: int) -> dict[str, int]:
    """This process's descriptors of the memory of a version, each with its inode."""
    name, found = f"groupwise-weights-{version:06d}", dict[str, int]()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself is closed
            if name in os.readlink(f"/proc/self/fd/{descriptor}"):
                found[descriptor] = os.stat(f"/proc/self/fd/{descriptor}").st_ino
    return found


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
