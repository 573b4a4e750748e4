"""Keepalive between hosts: each side of a connection notices within seconds that the other's host is gone.

While no data are under way, the kernel sends probes, and ends the connection after `VANISHED` seconds without an
answer, however busy this process is. Data under way would be repeated for 15 minutes, so this process checks that they
are acknowledged. A host acknowledges data although its process is busy or stopped: then it is not gone.
"""

import asyncio
import errno
import socket
import sys
from asyncio.trsock import TransportSocket
from contextlib import suppress

Connection = socket.socket | TransportSocket
VANISHED = 5
"""Seconds without any answer of a host after which it is gone."""
OPTIONS = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": VANISHED - 2}
"""The first probe is sent after two seconds of silence, the next ones after a second each."""
UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""The errors with which the kernel ends the connection to such a host."""
GONE = f"its host has not answered for {VANISHED} s"
"""The cause of a loss for that reason."""
PERIOD = 1.0
"""Seconds between two checks of data that are under way."""
RETRANSMITS, PROBES, LAST_DATA, LAST_ACK, LENGTH = 2, 3, 52, 56, 60
"""Offsets in Linux's `struct tcp_info`: unanswered retransmissions and probes (a byte each), milliseconds since the
last data and since the last acknowledgement (four bytes each); and the length of a struct with these fields."""


def keep_alive(connection: Connection) -> None:
    """Let the kernel end a TCP connection whose other host is gone while nothing is under way."""
    with suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in OPTIONS.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def until_gone(connection: Connection) -> None:
    """Return once the other host has not acknowledged data for `VANISHED` seconds. On Linux only."""
    while not (hasattr(socket, "TCP_INFO") and is_gone(connection)):
        await asyncio.sleep(PERIOD)


def is_gone(connection: Connection) -> bool:
    """Whether data or probes are unanswered, and nothing has arrived for `VANISHED` seconds; False if it is closed.

    A single probe is no evidence: while the other process reads nothing, probes are minutes apart, and the last one may
    have been sent a moment ago.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LENGTH)
    except OSError:
        return False
    if len(info) < LENGTH or not (info[RETRANSMITS] or info[PROBES] > 1):
        return False
    silent = (int.from_bytes(info[at : at + 4], sys.byteorder) for at in (LAST_DATA, LAST_ACK))
    return min(silent) >= VANISHED * 1000


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the error that ended a connection says that the other host is gone."""
    return isinstance(error, OSError) and error.errno in UNREACHABLE
