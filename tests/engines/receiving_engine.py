"""An engine for weights from other hosts: python -m tests.engines.receiving_engine DIRECTORY HOST.

It listens on a free port of HOST, and prints its address. DIRECTORY is for its weights.
"""

import asyncio
import sys
from pathlib import Path

from groupwise.engines import IncomingWeightsStore, WeightsFilesDirectory
from groupwise.engines.remote.tls import EngineTlsKey, listener_on, reachable
from groupwise.engines.remote.tls_server import listen_tls
from tests.engines.lines import LARGEST, blank, server

SECRET = b"s" * 32


async def serve(directory: Path, host: str) -> None:
    """Serve an engine at a free port of a host, until it is killed."""
    behind = server(blank())
    behind.uploads = IncomingWeightsStore(WeightsFilesDirectory(directory), LARGEST)
    key, listener = EngineTlsKey.new(), listener_on(f"{host}:0")
    print(reachable(listener, key), flush=True)
    await listen_tls(behind, listener, key, SECRET)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
