"""An engine in another process, over one connection."""

import asyncio
import itertools
import os
import secrets
import ssl
from asyncio import StreamReader, StreamWriter
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from torch import Tensor

from groupwise.core import EngineLost, Usage, WorkerLost, in_daemon_loop
from groupwise.data import ContextKey, Generation, GenerationRequest, Ids, Picture
from groupwise.data.rollout_json import from_json, to_json
from groupwise.engines.remote.engine_identity import EngineIdentity
from groupwise.engines.remote.gpu_weights import GpuWeights
from groupwise.engines.remote.heartbeat import PACE, HeartbeatMonitor, UnansweredRequest
from groupwise.engines.remote.host_uploads import Destination, HostUploads
from groupwise.engines.remote.keepalive import GONE, is_unreachable, keep_alive, until_gone
from groupwise.engines.remote.secret import prove
from groupwise.engines.remote.tls import TlsAddress, check_certificate, client_context, host_port
from groupwise.engines.remote.weights_file import WeightsFile, write_weights
from groupwise.engines.remote.wire import (
    LARGEST_PART,
    LARGEST_REPLY,
    LARGEST_REQUEST,
    MOST_PARTS,
    PROTOCOL,
    WireError,
    encode,
    error_of,
    read_message,
)

__all__ = ["RemoteEngine"]

R = TypeVar("R", bound="RemoteEngine")
T = TypeVar("T")
Answer = dict[str, Any]
CLOSINGS = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)
"""The errors of a new connection that the other side accepts and closes."""
CLOSED = "its connection closed"
"""The cause of a loss when the other side closes the connection."""
DEADLINES_TO_CONNECT = 3
"""How many deadlines an engine may need, beyond one, until its first part of weights has arrived at another engine: it
connects, greets, and sends. From then on each part counts as work."""


@dataclass(slots=True, eq=False, kw_only=True)
class RemoteCall(UnansweredRequest):
    """A request with the future of its reply."""

    reply: asyncio.Future[Answer]


class RemoteEngine:
    """An `Engine` in another process. If that process dies, is silent for `deadline` seconds, or works on none of its
    requests for as long, it is lost.

    A long answer is neither: an engine that owes an answer also replies to `hello`, between two tokens, with the number
    of steps that it has computed. An idle engine is lost, too, when its host is gone. A lost engine raises `EngineLost`
    for every pending and later call. `WorkerLost` if the engine fails in a request.
    """

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, *, name: str, deadline: float, same_host: bool = True,
        trainer: str = "",
    ) -> None:  # fmt: skip
        self.name, self.deadline, self.version, self.same_host = name, deadline, -1, same_host
        self._trainer = trainer or secrets.token_hex(16)
        self._reconnect: Callable[[], Awaitable[RemoteEngine]] | None = None
        self.uploads = HostUploads()
        """The hosts that have the newest weights. The engines of a fleet share it."""
        self.host = name
        """The name of the engine's host. Without one, no other engine shares the weights that it gets."""
        self._address = ""
        self.gpu = ""
        """The UUID of the GPU on which the engine loads weights without a file; empty for another engine."""
        self.cause = ""
        """Why the engine is lost; empty while it is not."""
        self.on_loss: Callable[[], None] = lambda: None
        self._writer = writer
        self._call_ids = itertools.count()
        self._pending: dict[int, RemoteCall] = {}
        self._heartbeat = HeartbeatMonitor(deadline)
        self._greeting = -1
        """The id of the newest `hello`."""
        self._tasks = [asyncio.create_task(self._read(reader))]

    @classmethod
    async def connect(
        cls: type[R], address: Path | TlsAddress, *, secret: bytes = b"", deadline: float = 60.0,
        expected: EngineIdentity | None = None, trainer: str = "",
    ) -> R:  # fmt: skip
        """Connect to an engine that `groupwise serve` started. `EngineLost` if no process listens there.

        `trainer` is a name that no other trainer knows: a load with it ends an older connection that loads weights.
        `Usage` if secret or certificate differ from the TLS address, or the engine from `expected`.
        """
        same_host = isinstance(address, Path)
        name = str(address) if isinstance(address, Path) else host_port(address.host, address.port)
        lost = EngineLost(f"no engine listens on {name}", fix="start it with groupwise serve, and check the address")
        try:
            async with asyncio.timeout(deadline):
                if isinstance(address, Path):
                    reader, writer = await asyncio.open_unix_connection(str(address))
                else:
                    reader, writer = await open_tls(address, secret)
        except TimeoutError:
            lost.evidence = f"it did not answer within {deadline:g} s"
            raise lost from None
        except CLOSINGS as error:
            evidence = f"it is no engine, or it has too many connections that have yet to prove the secret ({error})"
            fix = "check the address, and which clients connect to it"
            raise EngineLost(f"{name} ended the connection at once", evidence=evidence, fix=fix) from error
        except OSError as error:
            lost.evidence = str(error.strerror or error)
            raise lost from error
        remote = cls(reader, writer, name=name, deadline=deadline, same_host=same_host, trainer=trainer)
        remote._reconnect = partial(
            RemoteEngine.connect, address, secret=secret, deadline=deadline, trainer=remote._trainer
        )
        if not same_host:
            remote._address = str(address)
            remote._tasks.append(asyncio.create_task(remote._watch_host(writer.get_extra_info("socket"))))
        try:
            identity = await remote.hello(deadline)
            if expected is not None:
                identity.check(expected, name)
        except BaseException:
            remote.close()
            raise
        return remote

    async def hello(self, seconds: float) -> EngineIdentity:
        """Greet the engine, as the first call: its identity. `Usage` if it has another protocol.

        `EngineLost` if it does not answer within `seconds`. From then on, `deadline` holds.
        """
        try:
            async with asyncio.timeout(seconds):
                reply = await self._call("hello", protocol=PROTOCOL)
        except TimeoutError:
            raise self.fail(f"it did not answer within {seconds:g} s") from None
        self.version = self._parsed("hello", lambda: int(reply["version"]))
        self.gpu = str(reply.get("gpu", ""))
        self.host = str(reply.get("host") or self.name)
        self._tasks.append(asyncio.create_task(self._watch()))
        return EngineIdentity.from_json(reply)

    async def sample(self, request: GenerationRequest) -> Generation:
        """The next tokens of one sample. A cancelled call cancels the request in the engine."""
        reply = await self._call("sample", request=to_json(request))
        return self._parsed("sample", lambda: from_json(Generation, reply))

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        """The log-prob of each token given all tokens before it."""
        values = [to_json(picture) for picture in pictures]
        reply = await self._call("score", context=context, tokens=tokens, temperature=temperature, pictures=values)
        return self._parsed("score", lambda: tuple(map(float, reply["logp"])))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Write the weights to a file, which the engine reads. Both processes must be on one host."""
        with TemporaryDirectory() as directory:
            await self.fetch(await asyncio.to_thread(write_weights, Path(directory), version, weights))

    async def fetch(self, file: WeightsFile) -> None:
        """Make the engine load a weights file, which is sent once to each other host. `Storage` if it is damaged.

        With a `GpuWeights`, it loads them from the learner's GPU.

        The engine has `deadline` seconds, and those that it needs to read the file at `PACE`.
        """
        load = {"version": file.version, "sha256": file.sha256, "trainer": self._trainer}
        if isinstance(file.in_memory_weights, GpuWeights):
            size = file.in_memory_weights.tensors.bytes
            sending = file.in_memory_weights.send(partial(self._call, "load", more=size / PACE, **load), self.gpu)
            reply = await (sending if self.same_host else self.uploads.counted(size, sending))
        elif self.same_host:
            more = file.path.stat().st_size / PACE
            reply = await self._call("load", more=more, file=str(file.path), **load)
        else:
            reply = await self._load_on_host(file, load)
        self.version = self._parsed("load", lambda: int(reply["version"]))

    async def _load_on_host(self, file: WeightsFile, load: dict[str, Any]) -> Answer:
        """The engine's reply to a load of weights that its host has, after they were sent there if it has not."""
        load_call = partial(self._call, "load", more=file.path.stat().st_size / PACE, **load)
        reply = await load_call()
        for send in (self.uploads.once, self.uploads.again):  # again: the other engine's file is gone, or elsewhere
            if not reply.get("missing"):
                return reply
            await send(file, self)
            reply = await load_call()
        if reply.get("missing"):
            raise self.fail("it does not find the weights that were sent to it")
        return reply

    @property
    def destination(self) -> Destination:
        """Where another engine finds this one."""
        return Destination(self._address, self.host, self._trainer)

    async def receive(self, file: WeightsFile) -> None:
        """Send the engine a weights file. `EngineLost` if it is lost meanwhile."""
        connect = self._reconnect
        assert connect is not None, "an engine on another host has an address"
        try:
            await send_file(file, connect)
        except EngineLost as error:
            raise self.fail(error.evidence or error.what) from error

    async def pass_on(self, file: WeightsFile, to: Destination) -> None:
        """Make the engine send its host's copy of a weights file to an engine on another host, within the deadlines of
        an upload. `GroupwiseError` or ValueError if it fails: the engine itself need not be lost.
        """
        arguments = {"sha256": file.sha256, "deadline": self.deadline, **asdict(to)}
        await self._call("pass_on", more=DEADLINES_TO_CONNECT * self.deadline, **arguments)

    async def upload(self, file: WeightsFile, on_part: Callable[[], None] = lambda: None) -> None:
        """Send a weights file in parts, of which `MOST_PARTS` are under way at a time; `on_part` after each answer."""
        waiting: deque[asyncio.Task[Answer]] = deque()
        fields: dict[str, Any] = {"sha256": file.sha256, "trainer": self._trainer}

        async def oldest_arrived() -> None:
            await waiting.popleft()
            on_part()

        try:
            with file.path.open("rb") as parts:
                size = os.fstat(parts.fileno()).st_size
                for offset in range(0, size, LARGEST_PART):
                    if len(waiting) == MOST_PARTS:
                        await oldest_arrived()
                    call = self._call("upload", parts.read(LARGEST_PART), size=size, offset=offset, **fields)
                    waiting.append(asyncio.create_task(call))
                while waiting:
                    await oldest_arrived()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def sleep(self) -> None:
        """Make the engine free its weights and caches until the next load."""
        await self._call("sleep")
        self.version = -1

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Make the engine cache these prompts. It does not wait for the reply."""
        if not self.cause:
            self._send(next(self._call_ids), "prefill", contexts=contexts)

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
        for call in self._pending.values():
            if not call.reply.done():
                call.reply.set_exception(self._error())
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        # What is not sent yet is dropped: a stopped process would never read it.
        self._writer.transport.abort()

    def _error(self) -> EngineLost:
        return EngineLost(f"the engine {self.name} is lost", evidence=self.cause, fix="start it again")

    def _parsed(self, verb: str, parse: Callable[[], T]) -> T:
        """The value in a reply. An engine whose reply has none is lost."""
        try:
            return parse()
        except (KeyError, TypeError, ValueError) as error:
            raise self.fail(f"its reply to {verb} is malformed: {type(error).__name__}: {error}") from error

    async def _call(self, verb: str, part: bytes = b"", more: float = 0.0, **arguments: Any) -> Answer:
        """The reply to a request. The engine may take `more` seconds beyond the deadline."""
        self.check()
        call_id = next(self._call_ids)
        call = self._pending[call_id] = RemoteCall(verb, more, reply=asyncio.get_running_loop().create_future())
        try:
            self._send(call_id, verb, part, **arguments)
            return await call.reply
        except asyncio.CancelledError:
            if not self.cause:
                self._send(next(self._call_ids), "cancel", of=call_id)
            raise
        finally:
            self._pending.pop(call_id, None)

    def _send(self, call_id: int, verb: str, part: bytes = b"", **arguments: Any) -> None:
        data = encode({"id": call_id, "do": verb, **arguments}, part)
        if len(data) > LARGEST_REQUEST:
            evidence = f"{len(data)} bytes; the limit is {LARGEST_REQUEST}"
            raise Usage("a request is too long for an engine in another process", evidence=evidence,
                        fix="shorten the prompts, or use kind = 'Native'")  # fmt: skip
        self._writer.write(data)

    async def _read(self, reader: StreamReader) -> None:
        """Pass each reply to its caller, until the connection ends."""
        try:
            while (message := await read_message(reader, LARGEST_REPLY)) is not None:
                self._heartbeat.heard = True
                call_id, error = message.get("id"), message.get("error")
                if call_id is None:
                    self.fail(str(error_of(error)))
                    return
                if isinstance(call_id, int):
                    self._deliver(call_id, message.get("reply"), error)
            self.fail(GONE if is_unreachable(reader.exception()) else CLOSED)
        except WireError as error:
            self.fail(f"it sent no message of the protocol: {error}")

    def _deliver(self, call_id: int, reply: Any, error: Any) -> None:
        """Give a reply or an error to its caller, or the steps in a reply to `hello` to the heartbeat."""
        call = self._pending.get(call_id)
        if call is None:
            if call_id == self._greeting and isinstance(reply, dict):
                self._heartbeat.steps = reply.get("steps", 0)
        elif not call.reply.done():
            self._heartbeat.answers += 1
            if isinstance(reply, dict):
                call.reply.set_result(reply)
            else:
                call.reply.set_exception(self._failure(error_of(error)))

    def _failure(self, error: Exception) -> Exception:
        """An error of the engine. One that is no refusal of the request names the engine."""
        if type(error) is not WorkerLost:
            return error
        evidence = "\n".join(text for text in (error.what, error.evidence) if text)
        return WorkerLost(f"the engine {self.name} failed", evidence=evidence, fix=error.fix)

    async def _watch_host(self, connection: TransportSocket) -> None:
        """Lose the engine if its host is gone, also while it owes nothing."""
        keep_alive(connection)
        await until_gone(connection)
        self.fail(GONE)

    async def _watch(self) -> None:
        """Lose the engine if it owes an answer and the heartbeat finds that none will come."""
        while True:
            await asyncio.sleep(self._heartbeat.seconds)
            if cause := self._heartbeat.beat(self._pending.values()):
                self.fail(cause)
            elif self._pending:
                self._greeting = next(self._call_ids)
                self._send(self._greeting, "hello")


async def send_file(
    file: WeightsFile, connect: Callable[[], Awaitable[RemoteEngine]], on_part: Callable[[], None] = lambda: None
) -> None:
    """Send a weights file over a connection and a thread for it, so that answers arrive meanwhile."""

    async def send() -> None:
        remote = await connect()
        try:
            await remote.upload(file, on_part)
        finally:
            remote.close()

    await in_daemon_loop(send)


async def open_tls(address: TlsAddress, secret: bytes) -> tuple[StreamReader, StreamWriter]:
    """A connection on which both sides have proved who they are. `Usage` for another certificate or secret."""
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=client_context(), server_hostname=address.host
    )
    try:
        check_certificate(writer.get_extra_info("ssl_object"), address)
        await prove(reader, writer, secret, address.fingerprint, host_port(address.host, address.port))
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer
