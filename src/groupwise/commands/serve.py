"""`groupwise serve`: one native engine in a separate process, on a Unix socket or for other hosts. Ctrl-C ends it."""

import asyncio
import tempfile
from pathlib import Path

import torch

from groupwise.config.devices import device_of
from groupwise.config.recipe import Machine
from groupwise.data import Usage, visible
from groupwise.engines import EngineServer, Exchange, HostKey, Identity, Uploads, listen_tls, read_secret, servable
from groupwise.engines.tls import listener_on, reachable
from groupwise.models import find_model, read_model, read_tokenizer
from groupwise.rollout import NativeEngine


def serve(
    model: str, *, socket: str, listen: str, secret_file: str, key: str, dtype: str, seed: int, threads: int
) -> int:
    """Serve the model in a directory, as version 0, until the process is interrupted.

    It listens on the Unix socket `socket`, or on `listen`, HOST:PORT, for other hosts that know the secret. `dtype`,
    `seed` and `threads` are those of the recipes that use the engine.
    """
    if bool(socket) == bool(listen):
        raise Usage("an engine listens on a socket or for other hosts", fix="name --socket FILE or --listen HOST:PORT")
    secret = read_secret(secret_file) if listen else b""
    torch.set_num_threads(threads)
    directory, device = find_model(model), device_of(Machine().device)
    decoder = servable(read_model(directory, dtype=getattr(torch, dtype), device=device, seed=seed), None)
    tokenizer = read_tokenizer(directory)
    largest = sum(x.numel() * x.element_size() for x in decoder.state_dict().values())
    server = EngineServer(
        NativeEngine(decoder, tokenizer, seed=seed), Identity.of(decoder, tokenizer, seed=seed),
        decoder.shape.vocabulary, Uploads(Exchange(Path(tempfile.gettempdir())), largest) if listen else None,
    )  # fmt: skip
    if listen:
        host_key = HostKey.kept(Path(key)) if key else HostKey.new()
        listener = listener_on(listen)
        announce(model, str(reachable(listener, host_key)))
        asyncio.run(listen_tls(server, listener, host_key, secret))
    else:
        path = Path(socket).absolute()
        asyncio.run(server.listen(path, lambda: announce(model, str(path))))
    return 0


def announce(model: str, address: str) -> None:
    """Print the address that clients use."""
    print(visible(f"{model} is served at {address}; Ctrl-C ends"), flush=True)
