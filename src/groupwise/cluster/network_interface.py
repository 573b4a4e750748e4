"""The network interface of gloo and NCCL between ranks: that towards rank 0, whatever the name of this host means."""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from groupwise.core import Usage

INTERFACES = GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915
ANY_PORT = 9
OUTSIDE = "192.0.2.1"
"""An address of no host (RFC 5737), behind the default route."""


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


def use_interface_towards(hosts: Iterable[str]) -> None:
    """Let NCCL use the interface towards these hosts, until this process ends. A value of the user is kept.

    `Usage` unless it is one interface: NCCL reads its name once in a process.
    """
    if NCCL in os.environ or not (names := {host: interface(host) for host in hosts}):
        return
    if len(chosen := set(names.values())) > 1 or "" in chosen:
        found = ", ".join(f"{host}: {name or 'none is known'}" for host, name in names.items())
        fix = f"name the interface from which NCCL reaches all of them: {NCCL}=NAME in the environment of the command"
        raise Usage("NCCL needs one interface towards the engines", evidence=found, fix=fix)
    os.environ[NCCL] = chosen.pop()


def interface(host: str) -> str:
    """The name of the interface with the address from which this process reaches a host; empty if it is unknown.

    If the host is this one by its name, ranks on other hosts reach it by another interface than the loopback: Debian's
    /etc/hosts has the host's own name at 127.0.1.1.
    """
    addresses = {name: address for _, name in socket.if_nameindex() if (address := address_of(name))}
    source = source_address(host)
    if source.startswith("127.") and not (all_ranks_are_here() or host == "localhost" or host.startswith("127.")):
        others = {name: address for name, address in addresses.items() if not address.startswith("127.")}
        outward = source_address(OUTSIDE)
        if others:
            return next((name for name, address in others.items() if address == outward), next(iter(others)))
    if source.startswith("127."):
        names = [name for _, name in socket.if_nameindex()]
        return next((name for name in ("lo", "lo0") if name in names), names[0])
    return next((name for name, address in addresses.items() if address == source), "")


def all_ranks_are_here() -> bool:
    """Whether torchrun says that this host has all ranks."""
    return os.environ.get("LOCAL_WORLD_SIZE", "unknown") == os.environ.get("WORLD_SIZE")


def source_address(host: str) -> str:
    """The address of this host from which it reaches another one; empty without a route. It sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, ANY_PORT))
        except OSError:
            return ""
        return probe.getsockname()[0]


def address_of(name: str) -> str:
    """The IPv4 address of an interface of this host, on Linux; empty without one."""
    if sys.platform != "linux":
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(reply[20:24])
