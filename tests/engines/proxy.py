"""A proxy on the loopback interface that drops one connection without a word, as a firewall or a switch does."""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from types import TracebackType

SECONDS = 60.0


class Proxy:
    """A context with a proxy to a port of this host, in a thread. Its address is `port`.

    Once `most` bytes have arrived from the client of the connection `number`, counted from 1, it is dropped: it stays
    open on both sides, and nothing passes any more.
    """

    def __init__(self, target: int, most: int, number: int) -> None:
        self._target, self._most, self._number = target, most, number
        self.connections, self.dropped = 0, 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._ready.wait(SECONDS)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(SECONDS)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        drops = self.connections == self._number
        passes, arrived = asyncio.Event(), 0
        passes.set()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)

        async def pump(source: StreamReader, target: StreamWriter, *, counted: bool) -> None:
            nonlocal arrived
            while data := await source.read(1 << 16):
                arrived += len(data) if counted else 0
                if drops and arrived > self._most:
                    self.dropped = 1
                    passes.clear()
                await passes.wait()
                target.write(data)
                await target.drain()
            target.close()

        both = pump(reader, far_writer, counted=True), pump(far_reader, writer, counted=False)
        await asyncio.gather(*both, return_exceptions=True)
