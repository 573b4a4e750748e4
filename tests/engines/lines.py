"""Engines of this process behind the wire: each `RemoteEngine` has its own unnamed socket and server."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from groupwise.data import Engine
from groupwise.engines import EngineIdentity, EngineServer, NativeEngine, RemoteEngine
from groupwise.engines.remote.wire import PROTOCOL, encode
from groupwise.models import Decoder
from tests.processes import PATIENCE
from tests.rollout.fakes import VOCABULARY, decoder, engine, without_end_token

LARGEST = 1 << 24
"""The most bytes of a weights file that these engines load."""
IDENTITY = EngineIdentity(model_hash="m", tokenizer_hash="t", dtype="float64", seed=11)
HELLO = encode({"id": 0, "do": "hello", "protocol": PROTOCOL})
T = TypeVar("T")
_TASKS: set[asyncio.Task[None]] = set()


def run(call: Awaitable[T]) -> T:
    """The result of a call, in a loop of its own; an error after `PATIENCE` seconds."""

    async def limited() -> T:
        async with asyncio.timeout(PATIENCE):
            return await call

    return asyncio.run(limited())


def server(engine: Engine, vocabulary: int = VOCABULARY) -> EngineServer:
    return EngineServer(engine, IDENTITY, vocabulary=vocabulary, largest=LARGEST)


async def pair(serve: Callable[..., Awaitable[None]]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to `serve(reader, writer)`, which runs as a task of this loop."""
    here, there = socket.socketpair()
    task = asyncio.create_task(_served(serve, there))
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    return await asyncio.open_unix_connection(sock=here)


async def _served(serve: Callable[..., Awaitable[None]], there: socket.socket) -> None:
    await serve(*await asyncio.open_unix_connection(sock=there))


async def remote(
    engine: Engine, *, name: str = "one", deadline: float = PATIENCE, vocabulary: int = VOCABULARY
) -> RemoteEngine:
    """A greeted `RemoteEngine` of an engine."""
    client = RemoteEngine(*await pair(server(engine, vocabulary).connection), name=name, deadline=deadline)
    await client.hello(PATIENCE)
    return client


def blank(kind: type[NativeEngine] = NativeEngine, **sizes: Any) -> NativeEngine:
    """An engine with weights of its own that no client may see: it has no version."""
    model = decoder(spread=0.1)
    new = kind(model, without_end_token(), seed=11, **sizes)
    new.version = -1
    return new


def weights(model: Decoder) -> dict[str, Tensor]:
    return dict(model.state_dict())


def changed(model: Decoder) -> dict[str, Tensor]:
    """The decoder's own tensors after a step."""
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(1.25)
    return weights(model)


__all__ = ["HELLO", "IDENTITY", "blank", "changed", "engine", "pair", "remote", "run", "server", "weights"]
