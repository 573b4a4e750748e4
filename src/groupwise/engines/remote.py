"""An engine in another process, over one connection."""

import asyncio
import itertools
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from groupwise.data import ContextKey, EngineLost, Generation, GenerationRequest, Ids, Usage
from groupwise.engines.server import Identity
from groupwise.engines.weights_file import WeightsFile, write_weights
from groupwise.engines.wire import (
    LARGEST_REPLY,
    LARGEST_REQUEST,
    PROTOCOL,
    WireError,
    encode,
    error_of,
    read_message,
)

__all__ = ["Remote"]

BEATS = 4
"""How often the deadline is divided: an engine that owes an answer gets a `hello` this often."""


class Remote:
    """An `Engine` in another process. If that process dies, or is silent for `deadline` seconds, it is lost.

    A long answer is no silence: an engine that owes an answer also replies to `hello`, between two tokens. A lost
    engine raises `EngineLost` for every pending and later call.
    """

    def __init__(self, reader: StreamReader, writer: StreamWriter, *, name: str, deadline: float) -> None:
        self.name, self.deadline, self.version = name, deadline, -1
        self.cause = ""
        """Why the engine is lost; empty while it is not."""
        self.on_loss: Callable[[], None] = lambda: None
        self._writer = writer
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._heard = True
        self._tasks = [asyncio.create_task(self._read(reader))]

    @classmethod
    async def connect(cls, path: Path | str, *, deadline: float = 60.0, expected: Identity | None = None) -> "Remote":
        """Connect to an engine that `groupwise serve` started. `EngineLost` if no process listens there.

        `Usage` for another engine than the `expected` one.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(str(path))
        except OSError as error:
            fix = "start it: groupwise serve MODEL --socket FILE"
            raise EngineLost(f"no engine listens on {path}", evidence=str(error.strerror or error), fix=fix) from error
        remote = cls(reader, writer, name=str(path), deadline=deadline)
        try:
            identity = await remote.hello(deadline)
            if expected is not None:
                identity.check(expected, str(path))
        except BaseException:
            remote.close()
            raise
        return remote

    async def hello(self, seconds: float) -> Identity:
        """Greet the engine, as the first call: its identity. `Usage` if it has another protocol.

        `EngineLost` if it does not answer within `seconds`. From then on, `deadline` holds.
        """
        try:
            async with asyncio.timeout(seconds):
                reply = await self._call("hello", protocol=PROTOCOL)
        except TimeoutError:
            raise self.fail(f"it did not answer within {seconds:g} s") from None
        self.version = int(reply["version"])
        self._tasks.append(asyncio.create_task(self._watch()))
        return Identity.from_json(reply)

    async def sample(self, request: GenerationRequest) -> Generation:
        """The next tokens of one sample. A cancelled call cancels the request in the engine."""
        reply = await self._call("sample", request=request.to_json())
        try:
            return Generation.from_json(reply)
        except (KeyError, TypeError, ValueError) as error:
            raise self.fail(f"its answer is no generation: {error}") from error

    async def score(self, context: Ids, tokens: Ids, *, temperature: float = 1.0) -> tuple[float, ...]:
        """The log-prob of each token given all tokens before it."""
        reply = await self._call("score", context=context, tokens=tokens, temperature=temperature)
        return tuple(map(float, reply["logp"]))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Write the weights to a file, which the engine reads. Both processes must be on one host."""
        with TemporaryDirectory() as directory:
            await self.fetch(await asyncio.to_thread(write_weights, Path(directory), version, weights))

    async def fetch(self, file: WeightsFile) -> None:
        """Make the engine read a weights file. `Storage` if it is damaged."""
        reply = await self._call("load", version=file.version, file=str(file.path), sha256=file.sha256)
        self.version = int(reply["version"])

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Make the engine cache these prompts. It does not wait for the reply."""
        if not self.cause:
            self._send(next(self._numbers), "prefill", contexts=contexts)

    def fail(self, cause: str) -> EngineLost:
        """Close the connection: the engine is lost for this cause. Returns the error."""
        if not self.cause:
            self.cause = cause
            self._close()
            self.on_loss()
        return self._error()

    def check(self) -> None:
        """Raise `EngineLost` if the engine is lost."""
        if self.cause:
            raise self._error()

    def close(self) -> None:
        """Close the connection. The engine cancels its pending requests."""
        self.fail("the connection was closed here")

    def end(self) -> str:
        """Close the connection; returns why the engine was lost, if it was."""
        self.close()
        return self.cause

    def _close(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._error())
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        with suppress(OSError):
            self._writer.close()

    def _error(self) -> EngineLost:
        return EngineLost(f"the engine {self.name} is lost", evidence=self.cause, fix="start it again")

    async def _call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        self.check()
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, verb, **arguments)
            return await future
        except asyncio.CancelledError:
            if not self.cause:
                self._send(next(self._numbers), "cancel", of=number)
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, number: int, verb: str, **arguments: Any) -> None:
        data = encode({"id": number, "do": verb, **arguments})
        if len(data) > LARGEST_REQUEST:
            evidence = f"{len(data)} bytes; the limit is {LARGEST_REQUEST}"
            raise Usage("a request is too long for an engine in another process", evidence=evidence,
                        fix="shorten the prompts, or use kind = 'Native'")  # fmt: skip
        self._writer.write(data)

    async def _read(self, reader: StreamReader) -> None:
        """Pass each reply to its caller, until the connection ends."""
        try:
            while (message := await read_message(reader, LARGEST_REPLY)) is not None:
                self._heard = True
                error, reply = message.get("error"), message.get("reply")
                if message.get("id") is None:
                    self.fail(str(error_of(error)))
                    return
                future = self._pending.get(message["id"]) if isinstance(message["id"], int) else None
                if future is not None and not future.done():
                    if isinstance(reply, dict):
                        future.set_result(reply)
                    else:
                        future.set_exception(error_of(error))
            self.fail("its connection closed")
        except WireError as error:
            self.fail(f"it sent no message of the protocol: {error}")

    async def _watch(self) -> None:
        """Lose the engine if it owes an answer and sends nothing for `deadline` seconds.

        It counts beats, not seconds: this process may itself be busy for long, while replies wait to be read.
        """
        silent = 0
        while True:
            await asyncio.sleep(self.deadline / BEATS)
            silent = 0 if self._heard or not self._pending else silent + 1
            self._heard = False
            if silent >= BEATS:
                self.fail(f"it sent nothing for {self.deadline:g} s, while {len(self._pending)} requests waited")
            elif self._pending:
                self._send(next(self._numbers), "hello")
