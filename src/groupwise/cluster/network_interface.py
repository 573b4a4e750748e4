"""The network interface of gloo and NCCL between ranks: that towards rank 0, whatever the name of this host means."""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SIOCGIFADDR = 0x8915
ANY_PORT = 9


@contextmanager
def interface_towards(host: str) -> Iterator[None]:
    """A context in which gloo and NCCL use the interface towards a host. A value of the user is kept."""
    unset = [variable for variable in INTERFACES if variable not in os.environ]
    if not (name := interface(host) if unset else ""):
        yield
        return
    os.environ.update(dict.fromkeys(unset, name))
    try:
        yield
    finally:
        for variable in unset:
            del os.environ[variable]


def interface(host: str) -> str:
    """The name of the interface with the address from which this process reaches a host; empty if it is unknown."""
    names = [name for _, name in socket.if_nameindex()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, ANY_PORT))  # sends nothing
        address = probe.getsockname()[0]
        if address.startswith("127."):
            return next((name for name in ("lo", "lo0") if name in names), names[0])
        return next((name for name in names if address_of(name, probe) == address), "")


def address_of(name: str, probe: socket.socket) -> str:
    """The IPv4 address of an interface of this host, on Linux; empty without one."""
    if sys.platform != "linux":
        return ""
    try:
        reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError:
        return ""
    return socket.inet_ntoa(reply[20:24])
