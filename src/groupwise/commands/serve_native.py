"""`groupwise serve`: one native engine in a separate process, on a Unix socket or for other hosts. Ctrl-C ends it."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from groupwise.config.resolve_devices import device_of
from groupwise.core import Usage
from groupwise.engines import (
    EngineIdentity,
    EngineServer,
    IncomingWeightsStore,
    Native,
    WeightsFilesDirectory,
    read_secret,
    servable,
    serve_until_signal,
)
from groupwise.engines.remote.tls_replica import announce, serve_hosts
from groupwise.engines.remote.weights_file import HERE, most_file_bytes
from groupwise.models import find_model, read_model, read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `groupwise serve`: the engine, where it listens, and what it shares with the recipes that use it.

    It listens on the Unix socket `socket`, or on `listen`, HOST:PORT, for other hosts that know the secret. With `nccl`
    an engine of vLLM also takes their weights by NCCL.
    """

    engine: Native
    socket: str
    listen: str
    secret_file: str
    tls_key_file: str
    nccl: bool
    dtype: str
    device: str
    seed: int
    threads: int
    replicas: int

    def check(self) -> None:
        """`Usage` unless there is one address to listen at, and a secret for other hosts."""
        if bool(self.socket) == bool(self.listen):
            what = "an engine listens on a socket or for other hosts"
            raise Usage(what, fix="name --socket FILE or --listen HOST:PORT")
        if self.nccl and not (self.listen and device_of(self.device).startswith("cuda")):
            fix = "drop --nccl, or name --listen HOST:PORT and --device cuda"
            raise Usage("weights arrive by NCCL from other hosts, on a GPU", fix=fix)
        if self.listen:
            read_secret(self.secret_file)


def serve(model: str, options: ServeOptions) -> int:
    """Serve the model in a directory, as version 0, until a signal ends the process; returns the exit code."""
    options.check()
    if options.nccl:
        raise Usage("the engine Native loads a file of weights", fix="drop --nccl, or use --engine Vllm")
    torch.set_num_threads(options.threads)
    directory, device, seed = find_model(model), device_of(options.device), options.seed
    decoder = servable(read_model(directory, dtype=getattr(torch, options.dtype), device=device, seed=seed), None)
    tokenizer = read_tokenizer(directory)
    exchange = WeightsFilesDirectory(Path(tempfile.gettempdir()), HERE) if options.listen else None
    server = EngineServer(
        options.engine.build(decoder, tokenizer, seed=seed, experts=None),
        EngineIdentity.of(decoder, tokenizer, seed=seed), vocabulary=decoder.shape.vocabulary_size,
        largest=most_file_bytes(decoder), 
        uploads=IncomingWeightsStore(exchange, most_file_bytes(decoder)) if exchange else None,
    )  # fmt: skip
    if options.listen:
        serving = serve_hosts(
            server, options.listen, key_file=options.tls_key_file, secret_file=options.secret_file, model=model
        )  # fmt: skip
    else:
        path = Path(options.socket).absolute()
        serving = server.listen(path, lambda: announce(path, model))
    return asyncio.run(serve_until_signal(serving))
