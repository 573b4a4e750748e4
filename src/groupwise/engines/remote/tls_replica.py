"""The program of a replica on another host: a native engine without weights, for a trainer that knows the secret.

    python -m groupwise.engines.remote.tls_replica SETTINGS HOST

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
from pathlib import Path
from typing import Any

from groupwise.core import visible
from groupwise.engines.remote.replica import ReplicaSettings, native_server
from groupwise.engines.remote.secret import read_secret
from groupwise.engines.remote.server import EngineServer
from groupwise.engines.remote.tls import EngineTlsKey, TlsAddress, host_port, listener_on, reachable
from groupwise.engines.remote.tls_server import listen_tls
from groupwise.models import find_model

SERVED = "served at "
"""The begin of the line with the address of a replica that a cluster has started."""


def announce(address: object, model: str = "") -> None:
    """Print the address that clients use; with the name of a `model`, for the user of `groupwise serve`."""
    print(visible(f"{model} is {SERVED}{address}; Ctrl-C ends") if model else f"{SERVED}{address}", flush=True)


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
    directory = str(find_model(spec.model_directory, weights=False))
    server = native_server(replace(spec, model_directory=directory), same_host=False)
    asyncio.run(serve_hosts(server, host_port(host, 0)))


async def serve_hosts(
    server: EngineServer, listen: str, *, key_file: str = "", secret_file: str = "", model: str = ""
) -> None:
    """Serve trainers that know the secret, on `listen`, HOST:PORT, until cancelled. It announces the address.

    Without a `key_file` it has a new key, and so a new address. Without a `secret_file`, the secret is in the
    environment.
    """
    secret = read_secret(secret_file)
    key, listener = EngineTlsKey.kept(Path(key_file)) if key_file else EngineTlsKey.new(), listener_on(listen)
    announce(reachable(listener, key), model)
    await listen_tls(server, listener, key, secret)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
