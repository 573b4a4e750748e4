"""An engine in a child process, which ends with its parent: its start, and the program of a native engine's child.

The child's standard input is one end of an unnamed socket: no other process can connect, and no file is left behind.
"""

import asyncio
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from groupwise.core import EngineLost
from groupwise.engines.remote.engine_identity import EngineIdentity
from groupwise.engines.remote.incoming_weights import IncomingWeightsStore
from groupwise.engines.remote.remote_engine import CLOSED, RemoteEngine
from groupwise.engines.remote.server import EngineServer
from groupwise.engines.remote.weights_file import WeightsFilesDirectory, most_file_bytes
from groupwise.runs.process_logs import open_log
from groupwise.runs.run_layout import log_file
from groupwise.sandbox.die_with_parent import bound_command
from groupwise.sandbox.worker_pool import end_with_parent, last_lines

START = 120.0
"""Seconds that a child may take to start. Most of it is the import of torch."""
ENDING = 1.0
"""Seconds in which a child that has closed its connection may end by itself: its signal or exit code is then known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What a child needs to build its engine.

    `model_directory` has the configuration and tokenizer of a model. `adapter_json` has the settings of its adapter as
    JSON; it is empty without one.
    """

    model_directory: str
    dtype: str
    device: str
    threads: int
    seed: int
    max_num_seqs: int
    kv_cache_tokens: int
    compiled: bool
    adapter_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgram:
    """The program of a child process: `module` in an interpreter, with its settings and environment variables."""

    settings: ReplicaSettings
    module: str = __name__
    python: str = field(default_factory=lambda: sys.executable)
    environment_variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    start_seconds: float = START
    """The time it may take until its engine answers."""
    required_identity: EngineIdentity | None = None
    """The engine that the run needs. One on this host is it; one on another host may have read another model."""
    log_directory: Path | None = None
    """The folder of the child's output; by default the `directory` of its settings."""
    remote_module_arguments: Sequence[str] = ()
    """The module that starts it on another host, and the first arguments of that. Settings and a host follow."""


def command(program: ReplicaProgram, parent: int) -> list[str]:
    """The command that starts the program as a child of the process `parent`."""
    settings = json.dumps(asdict(program.settings))
    return bound_command(program.python, parent, ["-P", "-m", program.module, settings, str(parent)])


class Replica(RemoteEngine):
    """A `RemoteEngine` whose process is a child of this one."""

    process: "subprocess.Popen[bytes]"
    log: Path
    output_start_byte: int
    """The byte of the log at which the process's output begins."""

    def end(self) -> str:
        """Kill the process; returns how it ended, with its last lines of output."""
        if self.cause == CLOSED:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDING)
        self.close()
        killed = self.process.poll() is None
        if killed:
            self.process.kill()
        code = self.process.wait()
        # A process closes its connection before it has ended, so that it may end by itself in spite of the signal.
        killed = killed and code == -signal.SIGKILL
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        status = self.cause if killed else f"its process {ended}"
        return "\n".join([status, *printed(self.log, self.output_start_byte)])


async def start_replica(program: ReplicaProgram, index: int, deadline: float) -> Replica:
    """Start a child process, and wait for its engine. `EngineLost` with its last lines if it does not start."""
    log = log_file(program.log_directory or Path(program.settings.model_directory), f"engine {index}")
    here, there = socket.socketpair()
    try:
        with there, open_log(log) as output:
            begin = output.seek(0, os.SEEK_END)
            # In its own session, Ctrl-C does not reach it.
            process = subprocess.Popen(
                command(program, os.getpid()), env=program.environment_variables, start_new_session=True,
                stdin=there.fileno(), stdout=output, stderr=output,
            )  # fmt: skip
    except OSError as error:
        here.close()
        raise EngineLost(f"replica {index} did not start", evidence=str(error)) from error
    replica = None
    try:
        reader, writer = await asyncio.open_unix_connection(sock=here)
        replica = Replica(reader, writer, name=f"replica {index}, pid {process.pid}", deadline=deadline)
        replica.process, replica.log, replica.output_start_byte = process, log, begin
        await replica.hello(program.start_seconds)
    except EngineLost as error:
        evidence = replica.end() if replica else ""
        raise EngineLost(f"replica {index} did not start", evidence=evidence or error.evidence) from None
    except BaseException:
        if replica:
            replica.end()
        raise
    return replica


def printed(log: Path, begin: int) -> Sequence[str]:
    """The last lines of a child's output, from a byte of its log; none without a readable file."""
    try:
        with log.open("rb") as output:
            return last_lines(output, begin)
    except OSError:
        return []


# The child


def main(settings: dict[str, Any], parent: int) -> None:
    """Build the engine without weights, and serve the socket that is the standard input until it closes."""
    end_with_parent(parent)
    faulthandler.enable()
    server = native_server(ReplicaSettings(**settings))
    asyncio.run(serve(server, socket.socket(fileno=os.dup(0))))


def native_server(spec: ReplicaSettings, *, same_host: bool = True) -> EngineServer:
    """The server of a native engine that has no weights yet. From another host, they are sent over the connection."""
    import torch  # the parent's `--help` does without

    from groupwise.engines.remote.sleeping import SleepingEngine
    from groupwise.models import Decoder, read_shape, read_tokenizer
    from groupwise.models.decoder.decoder import DecoderShape
    from groupwise.models.lora import attach_settings

    torch.set_num_threads(spec.threads)
    shape, tokenizer = read_shape(spec.model_directory), read_tokenizer(spec.model_directory)
    assert isinstance(shape, DecoderShape), "the parent starts replicas of our decoder only"
    decoder = Decoder(shape).to(getattr(torch, spec.dtype)).to_empty(device=spec.device)
    decoder.compiled = spec.compiled
    attach_settings(decoder, spec.adapter_json)
    engine = SleepingEngine(
        decoder, tokenizer, seed=spec.seed, max_num_seqs=spec.max_num_seqs, kv_cache_tokens=spec.kv_cache_tokens
    )
    engine.version = -1  # until the first load
    largest = most_file_bytes(decoder)
    uploads = None if same_host else IncomingWeightsStore(WeightsFilesDirectory(Path(tempfile.gettempdir())), largest)
    identity = EngineIdentity.of(decoder, tokenizer, seed=spec.seed)
    return EngineServer(engine, identity, vocabulary=shape.vocabulary_size, largest=largest, uploads=uploads)


async def serve(server: EngineServer, connection: socket.socket) -> None:
    """Serve one connected socket until the other side closes it."""
    await server.connection(*await asyncio.open_unix_connection(sock=connection))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
