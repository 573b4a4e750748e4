"""Accepts connections from other hosts: TLS first, then the secret, and then the verbs of the wire."""

import asyncio
import socket
import ssl
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections import Counter
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from groupwise.engines.remote.keepalive import keep_alive, until_gone
from groupwise.engines.remote.secret import admit
from groupwise.engines.remote.server import EngineServer
from groupwise.engines.remote.tls import EngineTlsKey
from groupwise.engines.remote.wire import WireError

__all__ = ["listen_tls"]

STRANGERS = 64
"""The most connections at a time that have yet to prove that they know the secret."""
FROM_ONE_SOURCE = 16
"""The most of them from one source address."""
FIRST_BYTE = 5.0
"""Seconds in which a connection must send its first byte. A trainer does so at once."""
PATIENCE = 30.0
"""Seconds until it must have proved that it knows the secret."""
GOODBYE = 5.0
"""Seconds in which a client must agree to the end of its connection."""
PAUSE = 1.0
"""Seconds before the next connection is accepted, when this process cannot open more."""


async def listen_tls(server: EngineServer, listener: socket.socket, key: EngineTlsKey, secret: bytes) -> None:
    """Serve clients that know the secret, until cancelled. Any other client is an error to itself and nothing else."""
    context, loop = key.context(), asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    strangers: dict[socket.socket, str] = {}  # with their sources, the oldest first

    async def serve(client: socket.socket) -> None:
        writer = None
        try:
            await first_byte(client)
            async with asyncio.timeout(PATIENCE):
                reader, writer = await opened(client, context)
                known = await admit(reader, writer, secret, key.fingerprint)
            strangers.pop(client, None)
            if known:
                watcher = asyncio.create_task(end_with_host(client, writer))
                try:
                    await server.connection(reader, writer, secret)
                finally:
                    watcher.cancel()
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
            make_room(strangers, source := source_of(host))
            strangers[client] = source
            task = asyncio.create_task(serve(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        listener.close()
        for task in tasks:
            task.cancel()


def source_of(host: str) -> str:
    """The source that a connection from an address counts for. Each user of IPv6 has the addresses of a /64.

    >>> source_of("2001:db8::1:5"), source_of("::ffff:192.0.2.7"), source_of("192.0.2.7")
    ('2001:db8::', '192.0.2.7', '192.0.2.7')
    """
    address = ip_address(host.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


def make_room(strangers: dict[socket.socket, str], source: str) -> None:
    """End the oldest connection of this source if it has all that it may have, or else of the source that has most.

    So one source cannot keep out the others.
    """
    counts = Counter(strangers.values())
    if counts[source] >= FROM_ONE_SOURCE:
        crowded = source
    elif len(strangers) >= STRANGERS:
        crowded = max(strangers.values(), key=counts.__getitem__)  # that of the oldest, if several have as many
    else:
        return
    client = next(client for client, its_source in strangers.items() if its_source == crowded)
    del strangers[client]
    with suppress(OSError):  # it is closed already
        client.shutdown(socket.SHUT_RDWR)


async def end_with_host(client: socket.socket, writer: StreamWriter) -> None:
    """End a connection once the client's host is gone: its requests end, and another trainer may load."""
    await until_gone(client)
    writer.transport.abort()


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
    keep_alive(client)
    loop, reader = asyncio.get_running_loop(), StreamReader()
    protocol = StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, client, ssl=context, ssl_shutdown_timeout=GOODBYE
    )
    return reader, StreamWriter(transport, protocol, reader, loop)
