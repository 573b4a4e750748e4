"""Hosts that a recipe names: this machine, and others, which the command line must name, too."""

import re
from ipaddress import ip_address

__all__ = ["is_host", "is_this_machine"]

_HOST = re.compile(r"[A-Za-z0-9._:-]+")


def is_host(text: str) -> bool:
    """Whether a text may be the name or the address of a host, without a port."""
    return _HOST.fullmatch(text) is not None


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine by its very name: `localhost`, or an address of the loopback interface.

    >>> [is_this_machine(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "localhost.example")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
