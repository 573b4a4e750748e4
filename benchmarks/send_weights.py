"""The rate of sending weights to another host: python -m benchmarks.send_weights [MEGABYTES] [MILLISECONDS].

A file of random bytes goes over TLS on the loopback interface to an engine in another process, three times; the engine
compares its hash and does not read it. MILLISECONDS is the round trip of a network that a proxy delays, with any number
of bytes under way. CPU seconds are those of the trainer's process, with the proxy, and of the engine's.
"""

import asyncio
import multiprocessing
import os
import sys
import tempfile
import threading
from asyncio import Queue, StreamReader, StreamWriter
from hashlib import sha256
from pathlib import Path
from queue import Empty
from time import perf_counter, process_time
from typing import Any

from groupwise.core import EngineLost
from groupwise.engines import (
    EngineIdentity,
    EngineServer,
    EngineTlsKey,
    IncomingWeightsStore,
    RemoteEngine,
    TlsAddress,
    WeightsFile,
    WeightsFilesDirectory,
    listen_tls,
)
from groupwise.engines.no_engine import NoEngine
from groupwise.engines.remote.tls import listener_on, reachable

SECRET = b"only for this measurement, on loopback"
ROUNDS = 3
LARGEST = 1 << 40
BUFFER = 1 << 20
SECONDS = 120.0
"""The longest wait for an engine to start."""


class Receiver(NoEngine):
    """An engine that takes a weights file without reading it."""

    async def load_file(self, version: int, file: Path, sha256: str) -> None:
        await self.load(version, {})


def engine(directory: str, addresses: Any) -> None:
    """Serve a `Receiver`, whose address is put into a queue."""

    async def serve() -> None:
        key, listener = EngineTlsKey.new(), listener_on("127.0.0.1:0")
        identity = EngineIdentity(model_hash="", tokenizer_hash="", dtype="", seed=0)
        uploads = IncomingWeightsStore(WeightsFilesDirectory(Path(directory)), LARGEST)
        server = EngineServer(Receiver(), identity, vocabulary=1, largest=LARGEST, uploads=uploads)
        addresses.put(str(reachable(listener, key)))
        await listen_tls(server, listener, key, SECRET)

    asyncio.run(serve())


def next_address(addresses: Any) -> TlsAddress:
    """The next address that an engine puts into a queue. `EngineLost` if none does in time."""
    try:
        address = TlsAddress.parse(addresses.get(timeout=SECONDS))
    except Empty:
        fix = "look for its error above, or start fewer engines"
        raise EngineLost(f"an engine did not start within {SECONDS:g} s", fix=fix) from None
    assert address is not None
    return address


def delayed(port: int, seconds: float) -> int:
    """The port of a proxy, in a thread, that delays each direction."""
    ports: list[int] = []
    ready = threading.Event()

    async def pump(source: StreamReader, target: StreamWriter) -> None:
        loop, chunks = asyncio.get_running_loop(), Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while (chunk := await chunks.get())[1]:
                await asyncio.sleep(max(0.0, chunk[0] - loop.time()))
                target.write(chunk[1])
                await target.drain()
            target.close()

        delivery = asyncio.create_task(deliver())
        while data := await source.read(BUFFER):
            chunks.put_nowait((loop.time() + seconds, data))
        chunks.put_nowait((0.0, b""))
        await delivery

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=BUFFER)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    if not ready.wait(SECONDS):
        raise EngineLost(f"the proxy did not start within {SECONDS:g} s", fix="run it on a machine that is less busy")
    return ports[0]


def cpu_seconds(pid: int | None) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(address: TlsAddress, pid: int | None, directory: Path, megabytes: int) -> None:
    """Send as many files as there are rounds, and print a line for each."""
    client = await RemoteEngine.connect(address, secret=SECRET)
    path = directory / "weights"
    for version in range(ROUNDS):
        path.write_bytes(os.urandom(1_000_000) * megabytes)
        file = WeightsFile(version, path, sha256(path.read_bytes()).hexdigest())
        begin, own, other = perf_counter(), process_time(), cpu_seconds(pid)
        await client.fetch(file)
        seconds = perf_counter() - begin
        cpu = f"{process_time() - own:.2f} CPU s, the engine's {cpu_seconds(pid) - other:.2f}"
        print(f"{megabytes} MB in {seconds:.2f} s, {megabytes / seconds:,.0f} MB/s, {cpu}", flush=True)
    client.close()


def main(megabytes: int, milliseconds: float) -> None:
    """Start the engine, and measure."""
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        process = context.Process(target=engine, args=(directory, addresses))
        process.start()
        try:
            address = next_address(addresses)
            if milliseconds:
                port = delayed(address.port, milliseconds / 2e3)
                address = TlsAddress(address.host, port, address.fingerprint)
            asyncio.run(measure(address, process.pid, Path(directory), megabytes))
        finally:
            process.kill()
            process.join()


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:]]
    main(int(given[0]) if given else 500, given[1] if len(given) > 1 else 0.0)
