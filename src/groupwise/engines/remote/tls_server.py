"""Accepts connections from other hosts: TLS first, then the secret, and then the six verbs."""

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections import Counter
from contextlib import suppress

from groupwise.engines.remote.secret import admit
from groupwise.engines.remote.server import EngineServer
from groupwise.engines.remote.tls import EngineTlsKey
from groupwise.engines.remote.wire import WireError

__all__ = ["listen_tls"]

STRANGERS = 64
"""The most connections at a time that have yet to prove that they know the secret."""
FIRST_BYTE = 5.0
"""Seconds in which a connection must send its first byte. A trainer does so at once."""
PATIENCE = 30.0
"""Seconds until it must have proved that it knows the secret."""
GOODBYE = 5.0
"""Seconds in which a client must agree to the end of its connection."""
PAUSE = 1.0
"""Seconds before the next connection is accepted, when this process cannot open more."""
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""A client whose host is gone is noticed after two minutes of silence: its requests end, and another may load.

The last one, in milliseconds, is for data that is under way: until it is acknowledged, there are no probes.
"""


async def listen_tls(server: EngineServer, listener: socket.socket, key: EngineTlsKey, secret: bytes) -> None:
    """Serve clients that know the secret, until cancelled. Any other client is an error to itself and nothing else."""
    context, loop = key.context(), asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    strangers: dict[socket.socket, str] = {}  # with their hosts, the oldest first

    async def serve(client: socket.socket) -> None:
        writer = None
        try:
            await first_byte(client)
            async with asyncio.timeout(PATIENCE):
                reader, writer = await opened(client, context)
                known = await admit(reader, writer, secret, key.fingerprint)
            strangers.pop(client, None)
            if known:
                await server.connection(reader, writer)
            writer.close()
        except (OSError, WireError):  # TimeoutError and SSLError are OSErrors
            if writer:
                writer.transport.abort()
        finally:
            strangers.pop(client, None)

    try:
        while True:
            try:
                client, (host, *_) = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(PAUSE)
                continue
            if len(strangers) >= STRANGERS:
                drop_one(strangers)
            strangers[client] = host
            task = asyncio.create_task(serve(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        listener.close()
        for task in tasks:
            task.cancel()


def drop_one(strangers: dict[socket.socket, str]) -> None:
    """End the oldest connection of the host that has most, so that one host cannot keep out the others."""
    counts = Counter(strangers.values())
    client = max(strangers, key=lambda client: counts[strangers[client]])  # the first of equal ones
    del strangers[client]
    with suppress(OSError):  # it is closed already
        client.shutdown(socket.SHUT_RDWR)


async def first_byte(client: socket.socket) -> None:
    """Wait for the first byte of a connection, or its end. TimeoutError after `FIRST_BYTE` seconds: it is closed."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client, arrived.set)
    try:
        await asyncio.wait_for(arrived.wait(), FIRST_BYTE)
    finally:
        loop.remove_reader(client)
        if not arrived.is_set():
            client.close()


async def opened(client: socket.socket, context: ssl.SSLContext) -> tuple[StreamReader, StreamWriter]:
    """The two directions of a connection, once TLS is up."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    options += [(socket.IPPROTO_TCP, getattr(socket, k), v) for k, v in KEEPALIVE.items() if hasattr(socket, k)]
    with suppress(OSError):  # it is closed already
        for option in options:
            client.setsockopt(*option)
    loop, reader = asyncio.get_running_loop(), StreamReader()
    protocol = StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, client, ssl=context, ssl_shutdown_timeout=GOODBYE
    )
    return reader, StreamWriter(transport, protocol, reader, loop)
