"""Answers the verbs of the wire for one engine: hello, sample, score, upload, pass_on, load, sleep, prefill, cancel."""

import asyncio
import errno
import os
import socket
import stat
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from groupwise.core import EngineLost, GroupwiseError, Storage, Usage, open_regular
from groupwise.data import COLDEST, Engine, SharesDevice
from groupwise.data.rollout_json import to_json
from groupwise.engines.remote.engine_identity import EngineIdentity
from groupwise.engines.remote.gpu_weights import NCCL, TRANSFERS, PackedTensorLayout
from groupwise.engines.remote.incoming_weights import IncomingWeights, IncomingWeightsStore
from groupwise.engines.remote.keepalive import VANISHED
from groupwise.engines.remote.remote_engine import RemoteEngine, send_file
from groupwise.engines.remote.secret import HEXADECIMAL
from groupwise.engines.remote.tls import TlsAddress
from groupwise.engines.remote.weights_file import WeightsFile, read_weights
from groupwise.engines.remote.wire import (
    IDS,
    KEYS,
    LARGEST_GREETING,
    LARGEST_REPLY,
    LARGEST_REQUEST,
    MOST_PARTS,
    MOST_RECEIVERS,
    PROTOCOL,
    WireError,
    contexts_of,
    encode,
    error_json,
    generation_request,
    pictures_of,
    read_message,
    real,
    token_ids,
    whole,
)
from groupwise.models import Decoder, MixtureOfExpertsSizes
from groupwise.models.quantized_linear import is_quantized
from groupwise.models.vision.vision_files import vision_sizes

__all__ = ["EngineServer", "servable"]

MOST_CALLS = 1 << 14
"""The most requests of one connection that are unanswered at a time."""


@runtime_checkable
class LoadsWeightsFiles(Protocol):
    """An engine whose weights are in another process, which reads a weights file itself."""

    async def load_file(self, version: int, file: Path, sha256: str) -> None: ...


@runtime_checkable
class LoadsFromGpu(Protocol):
    """An engine that loads weights from the learner's GPU, if `gpu_uuid`, its GPU's UUID, is not empty."""

    gpu_uuid: str

    async def load_from_gpu(
        self, version: int, transfer: str, handle: dict[str, Any], tensors: PackedTensorLayout
    ) -> None: ...


@runtime_checkable
class CountsForwardPasses(Protocol):
    """An engine that counts the forward passes of its model. One without a count must end a request within the
    client's deadline; one with it, only a step."""

    @property
    def steps(self) -> int: ...


@dataclass(slots=True, eq=False)
class AcceptedConnection:
    """One connection: its unanswered requests, and the weights that it is sending.

    Both sides have proved that they know the `secret`; it is empty on a socket of this host, which needs none.
    """

    writer: StreamWriter
    secret: bytes = b""
    unanswered_requests: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    unanswered_parts: int = 0
    upload: IncomingWeights | None = None
    trainer_name: str = ""
    """The name with which its trainer loads weights; empty if it has given none."""
    sha256: str = ""
    """The hash of the weights that it loads. Only these may be sent to this engine."""

    def close(self) -> None:
        """Cancel the requests, and delete the weights that are not complete."""
        for call in self.unanswered_requests.values():
            call.cancel()
        self.drop_upload()
        with suppress(OSError):
            self.writer.close()

    def drop_upload(self) -> None:
        if self.upload:
            self.upload.close()
        self.upload = None


class EngineServer:
    """Serves one engine to any number of connections. `vocabulary` bounds the token ids of a score, and `largest` the
    bytes of a weights file.

    With `uploads`, clients are on other hosts and send weights, once to each host, or have another host's engine send
    them; without, they name a file.
    Garbage on a connection is an error to its sender, and ends that connection only. When a connection closes, its
    requests are cancelled.
    """

    def __init__(
        self,
        engine: Engine,
        identity: EngineIdentity,
        *,
        vocabulary: int,
        largest: int,
        uploads: IncomingWeightsStore | None = None,
    ) -> None:
        self.engine, self.identity, self.uploads = engine, identity, uploads
        self.vocabulary, self.largest = vocabulary, largest
        self._loading = asyncio.Lock()
        self._senders = asyncio.Semaphore(MOST_RECEIVERS)
        self._passed_parts = 0
        """The parts of weights that other hosts got from this one: work, as forward passes are."""
        self._loader: AcceptedConnection | None = None
        """The connection that loads weights. Others may not: versions of two runs could not be distinguished."""
        self._verbs: dict[str, Callable[[dict[str, Any], AcceptedConnection], Awaitable[dict[str, Any]]]] = {
            "hello": self._hello, "sample": self._sample, "score": self._score, "upload": self._upload,
            "pass_on": self._pass_on, "load": self._load, "sleep": self._sleep, "prefill": self._prefill,
        }  # fmt: skip

    async def listen(self, path: Path, ready: Callable[[], None]) -> None:
        """Serve on a Unix socket with the user's permissions until cancelled. `Usage` if another process listens.

        `ready` is called once clients can connect.
        """
        listener = bound(path)
        tasks: set[asyncio.Task[Any] | None] = set()

        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            tasks.add(task := asyncio.current_task())
            with suppress(asyncio.CancelledError):  # the end below is no error
                await self.connection(reader, writer)
            tasks.discard(task)

        try:
            server = await asyncio.start_unix_server(serve, sock=listener)
            try:
                ready()
                await asyncio.Event().wait()
            finally:
                server.close()
                for task in filter(None, tasks):
                    task.cancel()
        finally:
            path.unlink(missing_ok=True)

    async def connection(self, reader: StreamReader, writer: StreamWriter, secret: bytes = b"") -> None:
        """Serve one connection, on which both sides have proved the `secret`, until it closes."""
        client = AcceptedConnection(writer, secret)
        try:
            if await self._greeted(reader, client):
                while (message := await read_message(reader, LARGEST_REQUEST)) is not None:
                    self._begin(message, client)
        except WireError as error:
            self._send(writer, {"id": None, "error": error_json(Usage(str(error)))})
        finally:
            client.close()
            if self._loader is client:
                self._loader = None
                if self.uploads:
                    self.uploads.clear()

    async def _greeted(self, reader: StreamReader, client: AcceptedConnection) -> bool:
        """Whether the first message of a connection is a `hello` with our protocol. It is answered here."""
        message = await read_message(reader, LARGEST_GREETING)
        if message is None:
            return False
        call_id, protocol = message_id(message), message.get("protocol")
        if message.get("do") == "hello" and protocol == PROTOCOL and not isinstance(protocol, bool):
            self._send(client.writer, {"id": call_id, "reply": await self._hello(message, client)})
            return True
        what = f"this engine has protocol {PROTOCOL}, and the connection began with protocol {protocol!r:.40}"
        fix = "use the same version of groupwise on both sides"
        self._send(client.writer, {"id": call_id, "error": error_json(Usage(what, fix=fix))})
        return False

    def _begin(self, message: dict[str, Any], client: AcceptedConnection) -> None:
        """Start the call in a message as a task. `cancel` is answered at once."""
        call_id, verb, calls = message_id(message), message.get("do"), client.unanswered_requests
        if verb == "cancel":
            if call := calls.get(message_id({"id": message.get("of")})):
                call.cancel()
            self._send(client.writer, {"id": call_id, "reply": {}})
            return
        act = self._verbs.get(verb) if isinstance(verb, str) else None
        if act is None:
            raise WireError(f"there is no verb {verb!r:.40}: the verbs are {', '.join(self._verbs)}, cancel")
        if call_id in calls or len(calls) >= MOST_CALLS:
            raise WireError(f"the id {call_id} is in use" if call_id in calls else f"more than {MOST_CALLS} requests")
        parts = int("part" in message)
        if parts and client.unanswered_parts >= MOST_PARTS:
            raise WireError(f"more than {MOST_PARTS} parts of weights are unanswered")
        client.unanswered_parts += parts

        def end(_: asyncio.Task[None]) -> None:
            calls.pop(call_id, None)
            client.unanswered_parts -= parts

        calls[call_id] = asyncio.create_task(self._answer(call_id, partial(act, message, client), client.writer))
        calls[call_id].add_done_callback(end)

    async def _answer(self, call_id: int, call: Callable[[], Awaitable[dict[str, Any]]], writer: StreamWriter) -> None:
        """Send the reply or the error of one call."""
        try:
            message = {"id": call_id, "reply": await call()}
        except Exception as error:  # an engine's failure is its caller's to handle
            message = {"id": call_id, "error": error_json(error)}
        self._send(writer, message)
        with suppress(OSError):
            await writer.drain()

    def _send(self, writer: StreamWriter, message: dict[str, Any]) -> None:
        data = encode(message)
        if len(data) > LARGEST_REPLY:
            error = Usage(f"the answer has {len(data)} bytes", evidence=f"the limit is {LARGEST_REPLY}")
            data = encode({"id": message["id"], "error": error_json(error)})
        if not writer.is_closing():
            writer.write(data)

    # The verbs

    async def _hello(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        steps = self._passed_parts + (self.engine.steps if isinstance(self.engine, CountsForwardPasses) else 0)
        gpu = self.engine.gpu_uuid if isinstance(self.engine, LoadsFromGpu) else ""
        identity = {**asdict(self.identity), "gpu": gpu, "host": self.uploads.host if self.uploads else ""}
        return {"protocol": PROTOCOL, "version": self.engine.version, "steps": steps, **identity}

    async def _sample(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        return to_json(await self.engine.sample(generation_request(message.get("request"))))

    async def _score(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        context, tokens = (token_ids(message.get(name), self.vocabulary) for name in ("context", "tokens"))
        temperature = real("temperature", message.get("temperature"), COLDEST)
        pictures = pictures_of(message.get("pictures", []))
        logp = await self.engine.score(context, tokens, temperature=temperature, pictures=pictures)
        return {"logp": logp}

    async def _load(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        version, (sha256,) = whole("version", message.get("version"), 0, IDS), _texts(message, "sha256")
        self._take(client, str(message.get("trainer", "")))
        if "transfer" in message:
            await self._load_from_gpu(version, message)
            return {"version": self.engine.version}
        if self.uploads is None:
            await self._load_file(version, self._named(*_texts(message, "file")), sha256)
            return {"version": self.engine.version}
        client.sha256 = _hash_text(sha256)
        link = self.uploads.find(sha256)
        if link is None:
            return {"version": self.engine.version, "missing": True}
        try:
            await self._load_file(version, link, sha256)
        finally:
            link.unlink(missing_ok=True)
        return {"version": self.engine.version}

    async def _load_file(self, version: int, file: Path, sha256: str) -> None:
        async with self._loading:
            if isinstance(self.engine, LoadsWeightsFiles):
                await self.engine.load_file(version, file, sha256)
            else:
                await self.engine.load(version, await asyncio.to_thread(read_weights, file, sha256))

    async def _load_from_gpu(self, version: int, message: dict[str, Any]) -> None:
        """Load weights from the learner's GPU. `Usage` if the engine cannot; ValueError for a malformed message."""
        if not isinstance(self.engine, LoadsFromGpu) or not self.engine.gpu_uuid:
            raise Usage("this engine does not load weights from the learner's GPU", fix="load a weights file")
        transfer, handle = str(message.get("transfer")), message.get("handle")
        known = (NCCL,) if self.uploads else TRANSFERS  # memory has handles for processes of its host
        if transfer not in known or not isinstance(handle, dict):
            raise ValueError(f"a transfer is {' or '.join(known)}, with a handle")
        async with self._loading:
            await self.engine.load_from_gpu(version, transfer, handle, PackedTensorLayout.from_json(message))

    def _take(self, client: AcceptedConnection, trainer: str) -> None:
        """Let this connection load weights from now on. `Usage` if the connection of another trainer does.

        An older connection of the same trainer is dead: it cannot be reached, and this side may notice that much later.
        """
        before = self._loader
        if before is not None and before is not client:
            if not trainer or before.trainer_name != trainer:
                what = "another connection loads the weights of this engine"
                fix = f"wait for that run, for {VANISHED} s if its host is gone; or start another engine"
                raise Usage(what, fix=f"{fix}: groupwise serve MODEL")
            before.close()
            before.writer.transport.abort()
        self._loader, client.trainer_name = client, trainer

    def _named(self, file: str) -> Path:
        """The file that a client on this host names. `Storage` unless it is a regular one, as large as the weights."""
        try:
            open_regular(file, self.largest).close()
        except OSError as error:
            fix = "load a file with the weights of this engine's model"
            what = f"the weights file {file} cannot be read"
            raise Storage(what, evidence=str(error.strerror), fix=fix) from error
        return Path(file)

    async def _upload(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        """Add a part to the weights of this host. `EngineLost` unless the trainer's other connection loads weights, and
        `Usage` if it loads others: a host that was stopped may continue with older ones.
        """
        if self.uploads is None:
            raise Usage("this engine reads weights files on this host", fix="name the file in a load")
        trainer = message.get("trainer")
        if self._loader is None or not trainer or self._loader.trainer_name != trainer:
            evidence = "the connection of this trainer that loads weights has ended"
            raise EngineLost(
                "weights may be sent by the trainer that loads them", evidence=evidence, fix="connect again"
            )
        size, offset = (whole(name, message.get(name), 0, KEYS) for name in ("size", "offset"))
        sha256 = _hash_text(*_texts(message, "sha256"))
        if sha256 != self._loader.sha256:
            client.drop_upload()
            raise Usage("these are not the weights that the trainer loads", fix="send those of its newest load")
        if offset == 0:
            client.drop_upload()
            client.upload = self.uploads.begin(sha256, size)
        upload = client.upload
        if upload is None or (upload.sha256, upload.size) != (sha256, size):
            raise ValueError("a part of weights whose first part did not arrive")
        try:
            await upload.add(offset, message.get("part", b""))
        except BaseException:
            if client.upload is upload:
                client.drop_upload()
            raise
        return {}

    async def _pass_on(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        """Send weights that this engine received to one on another host. `EngineLost` if that is lost, `Storage`
        without them.

        `Usage` unless it has the certificate and the secret, and is on the host of that name.
        """
        if self.uploads is None or not client.secret:
            raise Usage("this engine sends no weights to other hosts", fix="send them from the trainer")
        if self._loader is not client:
            raise Usage("only the connection that loads weights may have them sent", fix="load weights first")
        sha256, text, host, trainer = _texts(message, "sha256", "address", "host", "trainer")
        address, deadline = TlsAddress.parse(text), real("deadline", message.get("deadline"), 0.0)
        if address is None:
            raise ValueError("address is not HOST:PORT#sha256=FINGERPRINT")
        async with self._senders:
            link = self.uploads.own(_hash_text(sha256))
            if link is None:
                raise Storage("it has no weights of this hash any more", fix="send them from the trainer")
            connect = partial(connect_to_host, address, host, secret=client.secret, deadline=deadline, trainer=trainer)
            try:
                await send_file(WeightsFile(-1, link, sha256), connect, self._count_part)
            finally:
                link.unlink(missing_ok=True)
        return {}

    def _count_part(self) -> None:
        self._passed_parts += 1

    async def _sleep(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        if not isinstance(self.engine, SharesDevice):
            raise Usage("this engine cannot free its memory", fix="set engine.placement to separate")
        if self._loader is not client:
            raise Usage("only the connection that loads weights may free them", fix="load weights first")
        async with self._loading:
            await self.engine.sleep()
        return {}

    async def _prefill(self, message: dict[str, Any], client: AcceptedConnection) -> dict[str, Any]:
        self.engine.prefill(contexts_of(message.get("contexts")))
        return {}


async def connect_to_host(address: TlsAddress, host: str, **how: Any) -> RemoteEngine:
    """Connect to an engine on the host of this name. `Usage` for another one: an address may mean two hosts.

    An error has no evidence, which could say what this host sees of others: a certificate, or whether a name exists.
    """
    try:
        remote = await RemoteEngine.connect(address, **how)
    except GroupwiseError as error:
        print(f"cannot pass weights on: {error}", file=sys.stderr, flush=True)
        raise type(error)(error.what, evidence="the engine that connects prints the reason", fix=error.fix) from error
    if remote.host != host:
        remote.close()
        fix = "give the engine an address that means its host everywhere"
        raise Usage(f"{remote.name} is an engine of another host here", fix=fix)
    return remote


def _texts(message: dict[str, Any], *names: str) -> list[str]:
    """The texts of these fields. ValueError if one is missing, or is no path or hash."""
    texts = [message.get(name) for name in names]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise ValueError(f"a request names {' and '.join(names)} as text")
    return [str(text) for text in texts]


def _hash_text(text: str) -> str:
    """A SHA-256 as text. ValueError for anything else: it is a part of a file's name."""
    if not HEXADECIMAL.fullmatch(text):
        raise ValueError(f"sha256 is {text!r:.80}: it must have 64 hexadecimal digits")
    return text


def message_id(message: dict[str, Any]) -> int:
    """The number of a message. WireError without one: its answer could not be assigned."""
    try:
        return whole("id", message.get("id"), 0, IDS)
    except ValueError as error:
        raise WireError(str(error)) from None


def bound(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can connect to. It replaces one whose process has ended."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and _is_dead(path):
            path.unlink()
        umask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(umask)
    except OSError as error:
        listener.close()
        fix = "name another one: --socket FILE, of at most 100 characters, in a directory of yours"
        raise Usage(f"cannot listen on {path}", evidence=error.strerror or str(error), fix=fix) from error
    return listener


def _is_dead(path: Path) -> bool:
    """Whether a file is a socket that no process listens on."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def servable(model: nn.Module, experts: MixtureOfExpertsSizes | None) -> Decoder:
    """The model, if an engine in another process can build it again. `Usage` with the reason if not."""
    reason = ""
    if not isinstance(model, Decoder):
        reason = "the model runs as modules of transformers"
    elif experts is not None:
        reason = 'method.router_replay is "engine"'
    elif is_quantized(model):
        reason = "its weights are in 4 bits"
    if reason or not isinstance(model, Decoder):
        fix = "use the engine in this process: --engine.kind Native"
        if vision_sizes(model):
            fix += "\nor vLLM: --engine.kind Vllm"
        raise Usage("engines in other processes cannot run this model", evidence=reason, fix=fix)
    return model
