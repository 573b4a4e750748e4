"""Weights that one pretended host passes on to another one: python -m tests.cluster.pass_between_hosts HOLDER RECEIVER.

The trainer sends them to the engine at the first address only. See `tests/engines/receiving_engine.py` for the engines.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from groupwise.engines import RemoteEngine, TlsAddress
from groupwise.engines.remote.weights_file import write_weights
from tests.engines.lines import engine, run, weights
from tests.engines.receiving_engine import SECRET
from tests.processes import PATIENCE
from tests.rollout.fakes import decoder


async def train(*texts: str) -> None:
    """Load weights into both engines, and compare their answers with those of an engine of this process."""
    addresses = [address for text in texts if (address := TlsAddress.parse(text))]
    holder, receiver = [await RemoteEngine.connect(x, secret=SECRET, deadline=PATIENCE) for x in addresses]
    with TemporaryDirectory() as directory:
        file = write_weights(Path(directory), 3, weights(model := decoder()))
        await holder.fetch(file)
        load = {"version": 3, "sha256": file.sha256, "trainer": receiver._trainer}
        assert (await receiver._call("load", **load))["missing"]
        await holder.pass_on(file, receiver.destination)
        assert (await receiver._call("load", **load)) == {"version": 3}
    for each in (holder, receiver):
        assert await each.score((1, 2), (3, 4)) == await engine(model).score((1, 2), (3, 4))
    print(f"{holder.name} passed weights on to {receiver.name}", flush=True)


if __name__ == "__main__":
    run(train(*sys.argv[1:]))
