"""A trainer and an engine on two pretended hosts, with TCP sockets in the place of NCCL's, and no GPU.

    python -m tests.cluster.nccl_by_sockets engine FILE      # on b: it writes its address into FILE
    python -m tests.cluster.nccl_by_sockets trainer FILE     # on a

The id of a group is the address where the trainer listens: that of the interface which NCCL would use.
"""

import asyncio
import os
import socket
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.cuda import nccl

from groupwise.cluster.network_interface import NCCL, address_of, use_interface_towards
from groupwise.engines import Fleet, IncomingWeightsStore, RemoteEngine, TlsAddress, WeightsFilesDirectory, WeightsProbe
from groupwise.engines.remote import gpu_weights
from groupwise.engines.remote.gpu_weights import PackedTensorLayout
from groupwise.engines.remote.sleeping import SleepingEngine
from groupwise.engines.remote.tls import EngineTlsKey, listener_on, reachable
from groupwise.engines.remote.tls_server import listen_tls
from tests.engines.lines import LARGEST, blank, engine, run, server, weights
from tests.processes import PATIENCE
from tests.rollout.fakes import decoder, request, without_end_token

SECRET = b"s" * 32
ID_BYTES = 128


class OverSockets(SleepingEngine):
    """Connects to the address in a group's id, and reads the bytes of all tensors from there."""

    gpu_uuid = "GPU-b"

    async def load_from_gpu(
        self, version: int, transfer: str, handle: dict[str, Any], tensors: PackedTensorLayout
    ) -> None:
        assert transfer == "nccl"
        host, port = bytes.fromhex(handle["unique_id"]).rstrip(b"\0").decode().split()
        reader, writer = await asyncio.open_connection(host, int(port))
        parts = torch.frombuffer(bytearray(await reader.readexactly(tensors.bytes)), dtype=torch.uint8)
        writer.close()
        views = zip(tensors.names, parts.split(tensors.sizes), tensors.dtype_names, tensors.shapes, strict=True)
        await self.load(version, {name: x.view(getattr(torch, dtype)).view(shape) for name, x, dtype, shape in views})


async def serve(file: Path) -> None:
    """Serve an engine at a free port of this host, until it is killed."""
    with TemporaryDirectory() as directory:
        behind = server(blank(OverSockets))
        behind.uploads = IncomingWeightsStore(WeightsFilesDirectory(Path(directory)), LARGEST)
        key, listener = EngineTlsKey.new(), listener_on("0.0.0.0:0")
        (draft := file.with_suffix(".draft")).write_text(str(reachable(listener, key)))
        draft.rename(file)
        await listen_tls(behind, listener, key, SECRET)


def meet_by_sockets() -> None:
    """Replace NCCL and the GPU of this process."""
    listeners: list[socket.socket] = []

    def unique_id() -> bytes:
        listeners.append(socket.create_server((address_of(os.environ[NCCL]), 0)))
        host, port = listeners[-1].getsockname()
        return f"{host} {port}".encode().ljust(ID_BYTES, b"\0")

    def broadcast(tensors: list[Tensor], *, comms: list[socket.socket], **_: Any) -> None:
        comms[0].sendall(tensors[0].contiguous().view(torch.uint8).numpy().tobytes())

    replaced: list[tuple[Any, str, Any]] = [
        (nccl, "unique_id", unique_id),
        (nccl, "init_rank", lambda size, unique_id, rank: listeners[-1].accept()[0]),
        (nccl, "all_reduce", lambda *_, **__: None),
        (nccl, "broadcast", broadcast),
        (gpu_weights, "gpu_uuid", lambda device: "GPU-a"),
        (torch.cuda, "synchronize", lambda device=None: None),
        (torch.cuda, "device", lambda _: nullcontext()),
        (torch.cuda, "stream", lambda _: nullcontext()),
        (torch.cuda, "Stream", lambda _: SimpleNamespace(synchronize=lambda: None)),
    ]
    for module, name, value in replaced:
        setattr(module, name, value)


async def train(file: Path) -> None:
    """Load two versions into the engine, and compare its answers with those of an engine of this process."""
    end = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < end, "the engine has no address"
        await asyncio.sleep(0.02)
    address = TlsAddress.parse(file.read_text())
    assert address is not None
    use_interface_towards([address.host])
    meet_by_sockets()
    model = decoder()
    requests = [request(i, stream=(j,)) for i in range(2) for j in range(2)]
    with TemporaryDirectory() as directory:
        fleet = Fleet(
            lambda number: RemoteEngine.connect(address, secret=SECRET, trainer="one"), 1,
            exchange=WeightsFilesDirectory(Path(directory)), probe=WeightsProbe(model, without_end_token(), 1e-3),
            max_num_seqs=64, restarts=0, on_gpu=True,
        )  # fmt: skip
        for version in range(2):
            expected = [await engine(model).sample(each) for each in requests]
            await fleet.load(version, state := weights(model))
            answers = await asyncio.gather(*map(fleet.sample, requests))
            assert [(x.tokens, x.logp) for x in answers] == [(x.tokens, x.logp) for x in expected]
            assert fleet.figures()["engine/sent_bytes"] == sum(x.nbytes for x in state.values())
            with torch.no_grad():
                for x in model.parameters():
                    x.mul_(1.1)
    print(f"both versions came over {os.environ[NCCL]}", flush=True)


if __name__ == "__main__":
    role, file = sys.argv[1], Path(sys.argv[2])
    run(serve(file) if role == "engine" else train(file))
