"""Who sends weights to several hosts: python -m benchmarks.send_to_hosts [MEGABYTES] [HOSTS].

A file of random bytes goes over TLS on the loopback interface to engines in other processes, whose separate
directories make them separate hosts. Once the trainer sends all copies, and once the hosts pass them on. The engines
compare its hash and do not read it. All processes share this machine: the bytes are those of several hosts, the seconds
are not.
"""

import asyncio
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from benchmarks.send_weights import SECRET, engine, next_address

from groupwise.engines import RemoteEngine, TlsAddress, WeightsFile
from groupwise.engines.remote import host_uploads, sending_turns
from groupwise.engines.remote.host_uploads import HostUploads


async def measure(addresses: Sequence[TlsAddress], directory: Path, megabytes: int) -> None:
    """Send a file to all hosts in either way, and print a line for each."""
    engines = [await RemoteEngine.connect(address, secret=SECRET) for address in addresses]
    most, path = host_uploads.MOST_RECEIVERS, directory / "weights"
    for version, (way, receivers) in enumerate({"the trainer sends": len(engines), "hosts pass on": most}.items()):
        for module in (host_uploads, sending_turns):
            module.MOST_RECEIVERS = receivers  # type: ignore[attr-defined]
        path.write_bytes(os.urandom(1_000_000) * megabytes)
        file = WeightsFile(version, path, sha256(path.read_bytes()).hexdigest())
        uploads, begin = HostUploads(lambda line: print(line, flush=True)), perf_counter()
        for each in engines:
            each.uploads = uploads
        await asyncio.gather(*(each.fetch(file) for each in engines))
        seconds, figures = perf_counter() - begin, uploads.figures()
        sent, passed = (figures[name] / 1e6 for name in ("engine/sent_bytes", "engine/passed_bytes"))
        print(
            f"{way}: {sent - passed:.0f} MB from the trainer, {passed:.0f} MB from hosts, {seconds:.2f} s", flush=True
        )
    for each in engines:
        each.close()


def main(megabytes: int, hosts: int) -> None:
    """Start the engines, and measure."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(hosts + 1)]
        addresses = context.Queue()
        processes = [context.Process(target=engine, args=(str(each), addresses)) for each in directories[1:]]
        try:
            for process in processes:
                process.start()
            found = [next_address(addresses) for _ in processes]
            asyncio.run(measure(found, directories[0], megabytes))
        finally:
            for process in processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(given[0] if given else 64, given[1] if len(given) > 1 else 6)
