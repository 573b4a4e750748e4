"""`groupwise serve --replicas N`: N engines in separate processes, each on its own GPUs. Ctrl-C ends all of them."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from groupwise.commands.serve_native import ServeOptions
from groupwise.commands.serve_vllm import hold
from groupwise.config.resolve_devices import device_of
from groupwise.core import WorkerLost
from groupwise.engines import Vllm, serve_until_signal
from groupwise.engines.remote.replica_devices import gpu_count, served_devices, visible_device
from groupwise.engines.remote.tls import EngineTlsKey
from groupwise.sandbox.die_with_parent import bound_command


def serve_replicas(model: str, options: ServeOptions, engine: Sequence[tuple[str, str]], python: str) -> int:
    """Serve N engines until a signal ends them, or all have ended; returns the exit code.

    `engine` are the words for it of the command line. The first engine has `--device`, or it and the next ones, and the
    others the next GPUs. `Usage` for more than there are. An engine that ends by itself is named, and the others go on.
    """
    options.check()
    size = options.engine.tensor_parallel_size if isinstance(options.engine, Vllm) else 1
    devices = served_devices(options.replicas, device_of(options.device), gpu_count(), size=size)
    if options.tls_key_file:
        EngineTlsKey.kept(Path(options.tls_key_file))  # made once, before all of them look for it
    engines = [one_of(options, index, device) for index, device in enumerate(devices)]
    commands = [
        bound_command(sys.executable, os.getpid(), serve_words(model, each, engine, python)) for each in engines
    ]
    return asyncio.run(serve_until_signal(all_ended(commands, [visible_device(device) for device in devices])))


def one_of(options: ServeOptions, index: int, device: str) -> ServeOptions:
    """The options of one engine: it sees its GPUs alone, and listens at the next port, or at `NAME-INDEX.sock`.

    Port 0 is a free one for each.
    """
    host, _, port = options.listen.rpartition(":")
    listen = f"{host}:{int(port) + index}" if port.isdecimal() and int(port) else options.listen
    path = Path(options.socket)
    socket = str(path.with_name(f"{path.stem}-{index}{path.suffix}")) if options.socket else ""
    return replace(options, replicas=1, device=device.partition(":")[0], listen=listen, socket=socket)


def serve_words(model: str, options: ServeOptions, engine: Sequence[tuple[str, str]], python: str) -> list[str]:
    """The arguments of Python for `groupwise serve` with these options."""
    words = {
        "--socket": options.socket, "--listen": options.listen, "--secret-file": options.secret_file,
        "--key": options.tls_key_file, "--dtype": options.dtype, "--device": options.device, "--seed": options.seed,
        "--threads": options.threads, "--engine-python": python,
    }  # fmt: skip
    words |= {f"--{path}": value for path, value in engine}
    flags = [f"{name}={value}" for name, value in words.items() if value != ""]
    flags += ["--nccl"] * options.nccl
    return ["-P", "-m", "groupwise", "serve", *flags, "--", model]


async def all_ended(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
    """Run the processes until all have ended. Each end is a line; `WorkerLost` has the last one."""
    tasks = [
        asyncio.create_task(hold(command, {**os.environ, **environment}, f"engine {index}"))
        for index, (command, environment) in enumerate(zip(commands, environments, strict=True))
    ]
    try:
        for running, task in zip(reversed(range(len(tasks))), asyncio.as_completed(tasks)):
            try:
                await task
            except WorkerLost as error:
                if not running:
                    raise
                print(f"{error.what}: {error.evidence}; {running} go on", file=sys.stderr, flush=True)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
