"""The program of a replica on another host: a native engine without weights, for a trainer that knows the secret.

    python -m groupwise.engines.replica_tls SETTINGS HOST

It listens on a free port of HOST, and prints its address. The secret is in the environment variable GROUPWISE_SECRET.
The `directory` of its settings is a model as a recipe names it; its weights are not read.
"""

import asyncio
import faulthandler
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from groupwise.engines.listening import listen_tls
from groupwise.engines.replica import ReplicaSettings, native_server
from groupwise.engines.secret import read_secret
from groupwise.engines.server import EngineServer
from groupwise.engines.tls import HostKey, TlsAddress, listener_on, place, reachable
from groupwise.models import find_model

SERVED = "served at "


def printed_address(lines: Sequence[str]) -> TlsAddress | None:
    """The address in a replica's output; None if it has yet to print it.

    >>> printed_address(["a warning", f"served at 10.0.0.1:7000#sha256={'0' * 64}"]).port
    7000
    """
    return next((TlsAddress.parse(line.removeprefix(SERVED)) for line in lines if line.startswith(SERVED)), None)


def main(settings: dict[str, Any], host: str) -> None:
    """Build the engine, and serve it until this process is terminated."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that its directory of weights is removed
    spec = ReplicaSettings(**settings)
    directory = str(find_model(spec.directory, weights=False))
    server = native_server(replace(spec, directory=directory), same_host=False)
    asyncio.run(serve_hosts(server, host))


async def serve_hosts(server: EngineServer, host: str) -> None:
    """Serve trainers that know the secret, on a free port of `host`, until cancelled. It prints the address."""
    key, listener = HostKey.new(), listener_on(place(host, 0))
    print(f"{SERVED}{reachable(listener, key)}", flush=True)
    await listen_tls(server, listener, key, read_secret(""))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
