"""Weights that engines load from the learner's GPU: copied once, loaded by handle or broadcast, and freed.

No GPU: torch's handles are those of a table, and NCCL is a queue. The engine in vLLM's place reads what
`transfer_arguments` gives to vLLM. With vLLM itself: `test_vllm.py`.
"""

import asyncio
import os
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.cuda import nccl
from torch.multiprocessing import reductions

from groupwise.config.recipe_toml import read_recipe
from groupwise.core import EngineLost, Usage
from groupwise.engines import (
    EngineAccess,
    Fleet,
    IncomingWeightsStore,
    Served,
    Vllm,
    WeightsFilesDirectory,
    WeightsProbe,
)
from groupwise.engines.remote import engine_slots, gpu_weights
from groupwise.engines.remote.gpu_weights import (
    IPC,
    LOOPBACK,
    PLAIN,
    GpuWeights,
    PackedTensorLayout,
    exported,
    imported,
)
from groupwise.engines.remote.remote_engine import RemoteEngine
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.remote.shared_device import SharedDeviceFleet
from groupwise.engines.remote.sleeping import SleepingEngine
from groupwise.engines.remote.weights_file import keep_on_gpu
from groupwise.engines.vllm.vllm_weight_transfer_arguments import transfer_arguments
from groupwise.models import Decoder
from groupwise.training import build_run
from tests.engines.lines import LARGEST, blank, changed, engine, remote, run, weights
from tests.engines.test_tls import SECRET, served
from tests.learner.small import model as small_model
from tests.pretended_gpu import counted, hosted, pretended_gpu
from tests.processes import PATIENCE
from tests.rollout.fakes import decoder, generate, request, without_end_token

REQUESTS = [request(i, stream=(j,)) for i in range(2) for j in range(2)]
LEARNER = "GPU-0"
REBUILD = reductions.rebuild_cuda_tensor


class PretendedVllm(SleepingEngine):
    """Loads weights with the arguments that vLLM's transfer engines would get."""

    gpu_uuid = LEARNER
    received: "queue.Queue[Tensor]"

    async def load_from_gpu(
        self, version: int, transfer: str, handle: dict[str, Any], tensors: PackedTensorLayout
    ) -> None:
        setup, update = transfer_arguments(transfer, handle, tensors, self.gpu_uuid)
        assert (transfer == IPC) == (self.gpu_uuid == LEARNER)
        if transfer == IPC:
            assert setup == {"packed": True}
            parts = reductions.rebuild_cuda_tensor(*update["ipc_handles"][self.gpu_uuid]).split(update["tensor_sizes"])
        else:
            assert (setup["rank_offset"], setup["world_size"], setup["packed"]) == (1, 2, False)
            assert len(await asyncio.to_thread(self.received.get, timeout=60)) == 1, "a number is added first"
            parts = [await asyncio.to_thread(self.received.get, timeout=60) for _ in update["names"]]
        shapes = zip(update["names"], parts, update["dtype_names"], update["shapes"], strict=True)
        loaded = {name: part.view(getattr(torch, dtype)).view(shape).clone() for name, part, dtype, shape in shapes}
        await self.load(version, loaded)


class OnAnotherGpu(PretendedVllm):
    gpu_uuid = "GPU-1"
    received = queue.Queue()


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's handles of GPU memory are those of a table, and what NCCL sends goes into a queue."""
    blocks: dict[bytes, Tensor] = {}

    def reduce_tensor(x: Tensor) -> tuple[Any, tuple[Any, ...]]:
        handle = f"export {len(blocks)}".encode()
        blocks[handle] = x
        storage = torch.storage.TypedStorage
        return REBUILD, (Tensor, x.shape, x.stride(), 0, storage, x.dtype, 0, handle, x.nbytes, 0, False, b"count", 3,
                         b"event", True)  # fmt: skip

    @wraps(REBUILD)
    def rebuild(*arguments: Any) -> Tensor:
        named = dict(zip(signature(REBUILD).parameters, arguments, strict=True))
        block = blocks.pop(named["storage_handle"])  # torch's count of users allows one for each export
        assert (named["tensor_size"], named["dtype"]) == (block.shape, torch.uint8)
        assert [named[name] for name in PLAIN[3:]] == [b"count", 3, b"event", True]
        return block

    monkeypatch.setattr(reductions, "reduce_tensor", reduce_tensor)
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild)
    monkeypatch.setattr(gpu_weights, "gpu_uuid", lambda device: LEARNER)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(nccl, "unique_id", lambda: bytes(range(128)))
    monkeypatch.setattr(nccl, "init_rank", lambda size, unique_id, rank: (size, unique_id, rank))
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(nccl, name, lambda tensors, **_: OnAnotherGpu.received.put(tensors[0].clone()))
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: SimpleNamespace(synchronize=lambda: None))
    for name in LOOPBACK:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)


def fleet(path: Path, model: Decoder, start: Callable[[int], Any], kind: type[Fleet] = Fleet) -> Fleet:
    probe = WeightsProbe(model, without_end_token(), 1e-3)
    return kind(start, 1, exchange=WeightsFilesDirectory(path), probe=probe, max_num_seqs=64, restarts=3, on_gpu=True)


@pytest.mark.parametrize("kind", [PretendedVllm, OnAnotherGpu], ids=["ipc", "nccl"])
def test_a_fleet_loads_each_version_from_the_gpu_and_writes_no_file(kind: type[PretendedVllm], tmp_path: Path) -> None:
    model, path = decoder(), tmp_path / "exchange"
    path.mkdir()

    async def go() -> None:
        group = fleet(path, model, lambda number: remote(blank(kind)))
        for version in range(2):
            expected = [await engine(model).sample(each) for each in REQUESTS]
            await group.load(version, weights(model))
            answers = await asyncio.gather(*map(group.sample, REQUESTS))
            assert [(x.tokens, x.logp) for x in answers] == [(x.tokens, x.logp) for x in expected]
            assert {v for x in answers for v in x.versions} == {version}
            with torch.no_grad():
                for x in model.parameters():
                    x.mul_(1.1)
        assert not [*path.glob("*/*.safetensors")]

    run(go())


@asynccontextmanager
async def on_another_host(path: Path, kind: type[PretendedVllm]) -> AsyncIterator[Callable[[int], Any]]:
    """An engine that other hosts reach by TLS, with `path` as its directory; connects to it."""
    path.mkdir()
    uploads = IncomingWeightsStore(WeightsFilesDirectory(path), LARGEST)
    async with served(blank(kind), uploads) as address:
        yield lambda number: RemoteEngine.connect(address, secret=SECRET, trainer="one", deadline=PATIENCE)


def test_an_engine_on_another_host_gets_each_version_by_nccl_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of the group goes over TLS, and the ranks meet on the chosen interface. The bytes are counted."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    model = decoder()

    async def go() -> None:
        async with on_another_host(tmp_path / "b", OnAnotherGpu) as connect:
            group = fleet(tmp_path, model, connect)
            for version in range(2):
                expected = [await engine(model).sample(each) for each in REQUESTS]
                await group.load(version, state := weights(model))
                answers = await asyncio.gather(*map(group.sample, REQUESTS))
                assert [(x.tokens, x.logp) for x in answers] == [(x.tokens, x.logp) for x in expected]
                figures = group.figures()
                assert figures["engine/sent_bytes"] == sum(x.nbytes for x in state.values())
                assert figures["engine/send_seconds"] > 0
                changed(model)
            assert not [*tmp_path.glob("**/*.safetensors")] and os.environ["NCCL_SOCKET_IFNAME"] == "eth7"

    run(go())


def test_ranks_of_a_transfer_meet_on_the_loopback_unless_another_interface_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    model = decoder()
    run(fleet(tmp_path, model, lambda number: remote(blank(OnAnotherGpu))).load(0, weights(model)))
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"


def test_an_engine_on_another_host_gets_no_handle_of_memory_and_needs_nccl(tmp_path: Path) -> None:
    class Without(PretendedVllm):
        gpu_uuid = ""

    async def go() -> None:
        async with on_another_host(tmp_path / "b", PretendedVllm) as connect:
            client = await connect(0)
            with pytest.raises(ValueError, match="a transfer is nccl, with a handle"):
                await client.fetch(keep_on_gpu(0, weights(decoder())))
        async with on_another_host(tmp_path / "c", Without) as connect:
            client = await connect(0)
            with pytest.raises(Usage, match="does not load weights from the learner's GPU") as caught:
                await client.fetch(keep_on_gpu(0, weights(decoder())))
            assert "groupwise serve --nccl" in caught.value.fix

    run(go())


def test_an_engine_that_starts_while_the_learner_trains_gets_the_published_weights(tmp_path: Path) -> None:
    model = decoder()
    expected = generate(engine(model), REQUESTS)
    started: list[RemoteEngine] = []

    async def start(number: int) -> RemoteEngine:
        started.append(await remote(blank(PretendedVllm)))
        return started[-1]

    async def go() -> Any:
        group = fleet(tmp_path, model, start)
        await group.load(0, weights(model))
        with torch.no_grad():
            for x in model.parameters():
                x.add_(1)
        started[0].fail("killed")
        return list(await asyncio.gather(*map(group.sample, REQUESTS)))

    answers = run(go())
    assert len(started) == 2 and [x.tokens for x in answers] == [x.tokens for x in expected]


def test_engines_that_sleep_beside_the_learner_leave_no_copy(tmp_path: Path) -> None:
    model = decoder()

    async def go() -> None:
        group = fleet(tmp_path, model, lambda number: remote(blank(PretendedVllm)), SharedDeviceFleet)
        assert isinstance(group, SharedDeviceFleet)
        for version in range(2):
            await group.load(version, weights(model))
            published = group._published
            memory = published.weights_file.in_memory_weights if published else None
            assert isinstance(memory, GpuWeights) and memory.packed is not None
            await group.sleep()
            assert memory.packed is None
            with pytest.raises(EngineLost, match="were freed"):
                await memory.send(lambda **fields: None, LEARNER)  # type: ignore[arg-type, return-value]

    run(go())


def test_one_kernel_copies_the_weights_and_nothing_reaches_the_host() -> None:
    with pretended_gpu() as device:
        policy = small_model(torch.bfloat16).to(device)
        with counted() as copy:
            block = GpuWeights(policy.state_dict())
        assert (copy.kernels, copy.bytes_to_host, copy.waits) == (1, 0, 0)
        state = policy.state_dict()
        assert block.packed is not None and block.packed.nbytes == block.tensors.bytes
        parts = hosted(block.packed).split(block.tensors.sizes)
        for name, part in zip(block.tensors.names, parts, strict=True):
            assert torch.equal(part.view(torch.bfloat16).view(state[name].shape), hosted(state[name]))


def test_wider_numbers_come_first_so_that_each_tensor_is_aligned() -> None:
    tensors = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(2), "c": torch.tensor(2.0)}
    block = GpuWeights(tensors)
    assert block.tensors.names == ["b", "c", "a"] and block.tensors.sizes == [8, 4, 6] and block.packed is not None
    handle = exported(block.packed)
    assert all(isinstance(handle[name], str | int) for name in PLAIN) and handle["storage_handle"] == b"export 0".hex()
    assert imported(handle, 18)[:8] == (
        Tensor, torch.Size([18]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, b"export 0",
    )  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": []},
        {"names": ["w"], "dtype_names": ["load"], "shapes": [[2]]},
        {"names": [1], "dtype_names": ["bfloat16"], "shapes": [[2]]},
        {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [[-1]]},
        {"names": ["w"], "dtype_names": ["bfloat16"], "shapes": [2]},
        {},
    ],
)
def test_a_malformed_description_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"names, dtype_names and shapes|dtype|size|name"):
        PackedTensorLayout.from_json(message)
    with pytest.raises(ValueError, match="a handle of memory on a GPU has"):
        imported({"storage_handle": "00"}, 4)


def test_an_engine_without_a_gpu_refuses() -> None:
    async def go() -> None:
        client = await remote(blank())
        with pytest.raises(Usage, match="the engine does not load weights from the learner's GPU"):
            await client.fetch(keep_on_gpu(0, weights(decoder())))
        with pytest.raises(Usage, match="does not load weights from the learner's GPU"):
            await client._call("load", version=0, sha256="gpu", transfer=IPC, handle={})

    run(go())


B, C = (f"{host}:7000#sha256={'0' * 64}" for host in "bc")


@pytest.mark.parametrize(
    ("engine", "changes", "words", "reason"),
    [
        (Vllm(replicas=0, addresses=(B,)), {}, {}, ""),
        (Vllm(replicas=0, addresses=(B, C)), {}, {}, "c:7000 may get a file only"),
        (Vllm(replicas=0, addresses=(B, "one.sock")), {}, {}, "one.sock may get a file only"),
        (Vllm(replicas=0, addresses=(B,)), {"gathers_layers": True}, {}, "rank 0 of the sharded learner"),
        (Vllm(replicas=0, addresses=(B,)), {"device": "cpu"}, {}, "the learner is on a CPU"),
        (Vllm(replicas=0, addresses=(B,)), {}, {"exchange_directory": "/dev/shm"}, "/dev/shm for a file"),
        (Vllm(addresses=(B,)), {"device_from_launcher": True}, {}, "a launcher starts"),
        (Vllm(addresses=(B,), tensor_parallel_size=2), {}, {}, "several devices"),
        (Served(replicas=0, addresses=(B,)), {}, {}, "of the kind Served"),
    ],
)
def test_nccl_to_another_host_is_done_or_refused_with_the_reason(
    engine: Served, changes: dict[str, Any], words: dict[str, Any], reason: str
) -> None:
    """With another rule, a run would send a file in silence, or weights in plain to a host that may get a file only."""
    access = EngineAccess(hosts=("b", "c"), nccl_hosts=("b",), **words)
    target = replace(EngineRequirements(dtype="bfloat16", device="cuda:0"), **changes)
    assert engine.publishes_on_gpu(access, target) is not bool(reason)
    assert not engine.publishes_on_gpu(replace(access, nccl_hosts=()), target)
    engine.check_nccl(decoder(), target, replace(access, nccl_hosts=()))
    if not reason:
        engine.check_nccl(decoder(), target, access)
        return
    with pytest.raises(Usage, match="cannot get weights by NCCL") as caught:
        engine.check_nccl(decoder(), target, access)
    assert reason in caught.value.evidence and "drop --engine-nccl" in caught.value.fix


def test_a_run_chooses_the_interface_of_nccl_before_it_builds_its_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL reads it once in a process: the ranks of the learner, which come after the engines, use it too."""
    chosen: list[tuple[str, ...]] = []
    monkeypatch.setenv("GROUPWISE_SECRET", SECRET.decode())
    monkeypatch.setattr(build_run, "use_interface_towards", chosen.append)
    recipe = read_recipe("method = 'grpo'")
    recipe = replace(recipe, engine=Vllm(replicas=0, addresses=(B,)))
    model, access = decoder(model_family="qwen3", head_dim=32), EngineAccess(hosts=("b",), nccl_hosts=("b",))
    with pytest.raises(Usage, match="cannot get weights by NCCL") as caught:
        build_run.build_engine(recipe, model, without_end_token(), access)
    assert "the learner is on a CPU" in caught.value.evidence and chosen == [("b",)]


def test_weights_stay_on_the_gpu_for_local_engines_of_vllm_only() -> None:
    gpu, here = EngineRequirements(dtype="bfloat16", device="cuda:0"), EngineAccess()
    assert Vllm().publishes_on_gpu(here, gpu)
    assert not Vllm().publishes_on_gpu(EngineAccess(exchange_directory="/dev/shm"), gpu)
    assert not Vllm(addresses=("engine.socket",)).publishes_on_gpu(here, gpu)
    assert not Vllm().publishes_on_gpu(here, EngineRequirements(dtype="float32", device="cpu"))
    assert not Vllm().publishes_on_gpu(
        here, EngineRequirements(dtype="bfloat16", device="cuda:0", device_from_launcher=True)
    )
    assert not Served().publishes_on_gpu(here, gpu)
