"""An engine in a process of its own, for weights from other hosts: python -m tests.engines.receiving_engine DIRECTORY.

DIRECTORY, for its weights, is its host. It prints its address.
"""

import asyncio
import sys
from pathlib import Path

from groupwise.engines import IncomingWeightsStore, WeightsFilesDirectory
from groupwise.engines.remote.tls import EngineTlsKey, listener_on, reachable
from groupwise.engines.remote.tls_server import listen_tls
from tests.engines.lines import LARGEST, blank, server

SECRET = b"s" * 32


async def serve(directory: Path) -> None:
    """Serve an engine at a free port of the loopback interface, until it is killed."""
    behind = server(blank())
    behind.uploads = IncomingWeightsStore(WeightsFilesDirectory(directory), LARGEST)
    key, listener = EngineTlsKey.new(), listener_on("127.0.0.1:0")
    print(reachable(listener, key), flush=True)
    await listen_tls(behind, listener, key, SECRET)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
