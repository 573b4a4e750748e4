"""`groupwise serve`: one native engine in a separate process, on a Unix socket. Ctrl-C ends it."""

import asyncio
from pathlib import Path

import torch

from groupwise.config.devices import device_of
from groupwise.config.recipe import Machine
from groupwise.data import visible
from groupwise.engines import EngineServer, Identity, servable
from groupwise.models import find_model, read_model, read_tokenizer
from groupwise.rollout import NativeEngine


def serve(model: str, path: str, *, dtype: str, seed: int, threads: int) -> int:
    """Serve the model in a directory, as version 0, until the process is interrupted.

    `dtype`, `seed` and `threads` are those of the recipes that use the engine.
    """
    torch.set_num_threads(threads)
    directory, device = find_model(model), device_of(Machine().device)
    decoder = servable(read_model(directory, dtype=getattr(torch, dtype), device=device, seed=seed), None)
    tokenizer = read_tokenizer(directory)
    server = EngineServer(
        NativeEngine(decoder, tokenizer, seed=seed), Identity.of(decoder, tokenizer, seed=seed),
        decoder.shape.vocabulary,
    )  # fmt: skip
    socket = Path(path).absolute()
    asyncio.run(
        server.listen(socket, lambda: print(visible(f"{model} is served at {socket}; Ctrl-C ends"), flush=True))
    )
    return 0
