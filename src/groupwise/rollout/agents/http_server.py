"""The endpoint over HTTP, for agents in other threads, processes and languages of this machine.

It listens on 127.0.0.1 at a free port, while an episode needs it. The key of an episode keeps other users of the
machine out; the check of the `Host` header, and no CORS header, keep web pages out (DNS rebinding).
"""

import asyncio
import re
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

from groupwise.core import MissingRequirement, is_this_machine
from groupwise.rollout.agents.chat_request import RequestError
from groupwise.rollout.agents.endpoint import MOST_BYTES, Endpoint, HttpReply

__all__ = ["EndpointServer"]

ADDRESS = "127.0.0.1"
MOST_HEAD = 16 << 10
"""The bound of a request's line and headers together, in bytes. One that arrives as a whole may have a `CHUNK` more."""
MOST_CONNECTIONS = 512
"""The most connections at a time. For another one, the connection that has been idle for longest is closed."""
CHUNK = 16 << 10
"""The most bytes that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the server waits for a client, in seconds: for the head of a request, its body, and a reply's reader.

    The answer itself has the deadline of its episode, whose end ends all its requests.
    """

    head_seconds: float = 120.0
    body_seconds: float = 60.0
    reply_read_seconds: float = 60.0


@dataclass(eq=False)
class EndpointServer:
    """Serves an endpoint to the processes of this machine, while it is `open`."""

    endpoint: Endpoint
    patience: Patience = Patience()
    _users: int = field(default=0, init=False)
    _server: "asyncio.Task[asyncio.Server] | None" = field(default=None, init=False)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)
    idle_connections: "dict[StreamWriter, None]" = field(default_factory=dict, init=False)
    """The connections that wait for a request, the longest idle one first."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """A context in which the endpoint is served, at this base URL. All contexts at a time share one port.

        `MissingRequirement` if this machine has no free port.
        """
        self._users += 1
        try:
            if self._server is None:
                self._server = asyncio.ensure_future(self._listen())
            server = await asyncio.shield(self._server)
            yield f"http://{ADDRESS}:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            self._users -= 1
            if not self._users:
                await self._close()

    async def _listen(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._connected, ADDRESS, 0, family=socket.AF_INET, limit=CHUNK)
        except OSError as error:
            fix = "close programs that hold many ports, or use an async agent, which needs none"
            raise MissingRequirement(f"no port of {ADDRESS} is free", evidence=str(error), fix=fix) from error

    async def _close(self) -> None:
        started, self._server = self._server, None
        tasks = [*self._tasks]
        if started is not None:
            started.cancel()
            if started.done() and not started.cancelled() and started.exception() is None:
                started.result().close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection. With too many, close the longest idle one, or this one if none is idle."""
        task = asyncio.current_task()
        assert task is not None, "asyncio runs it as a task"
        self._tasks.add(task)
        if len(self._tasks) > MOST_CONNECTIONS and self.idle_connections:
            next(iter(self.idle_connections)).transport.abort()
        busy = len(self._tasks) > MOST_CONNECTIONS and not self.idle_connections
        writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until a reply is sent
        try:
            await Connection(self, reader, writer).run(busy=busy)
        except (asyncio.CancelledError, h11.RemoteProtocolError, TimeoutError, OSError):
            writer.transport.abort()  # the end of the run, or a client that sends no HTTP, stops sending, or hangs up
        finally:
            self._tasks.discard(task)
            writer.close()


class HungUp(OSError):
    """The client has closed the connection before its reply."""


class Connection:
    """One connection, whose requests are answered one after the other."""

    def __init__(self, server: EndpointServer, reader: StreamReader, writer: StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)

    async def run(self, *, busy: bool) -> None:
        """Answer requests until the connection closes. A `busy` server refuses the first one."""
        patience = self.server.patience
        while True:
            self.server.idle_connections[self.writer] = None
            try:
                async with asyncio.timeout(patience.head_seconds):
                    request = await self._event()
            except h11.RemoteProtocolError as error:
                await self._send(_refusal(str(error), error.error_status_hint), close=True)
                return
            finally:
                self.server.idle_connections.pop(self.writer, None)
            if not isinstance(request, h11.Request):
                return
            too_many = RequestError("the endpoint has too many connections", status=503, code="overloaded")
            reply = HttpReply.of(too_many) if busy else await self._reply(request)
            await self._send(reply, close=busy, bodiless=request.method == b"HEAD")
            if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                return
            self.http.start_next_cycle()

    async def _event(self) -> object:
        """The next part of the client's request: its head, some bytes of its body, its end, or the connection's."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            self.http.receive_data(await self.reader.read(CHUNK))
        return event

    async def _reply(self, request: h11.Request) -> HttpReply:
        """The reply to a request, whose body is read here. Nothing of it is kept if the request is refused anyway."""
        headers = {name: value.decode("latin-1") for name, value in request.headers}
        method, path = request.method.decode(), request.target.decode("latin-1").partition("?")[0]
        authorization, size = headers.get(b"authorization", ""), int(headers.get(b"content-length", "0"))
        refusal: RequestError | None = None
        try:
            _check_host(headers.get(b"host", ""))
            self.server.endpoint.check(method, path, authorization, size)
        except RequestError as error:
            refusal = error
        async with asyncio.timeout(self.server.patience.body_seconds):
            body = await self._body(discard=refusal is not None)
        if refusal is not None:
            return HttpReply.of(refusal)
        return await self._unless_hung_up(method, path, authorization, bytes(body))

    async def _body(self, *, discard: bool) -> bytearray:
        """The body of a request. One that is too long is read up to the bound, which is enough to refuse it."""
        body, size = bytearray(), 0
        while size <= MOST_BYTES and isinstance(event := await self._event(), h11.Data):
            size += len(event.data)
            body += b"" if discard else event.data
        return body

    async def _unless_hung_up(self, method: str, path: str, authorization: str, body: bytes) -> HttpReply:
        """The endpoint's reply. `HungUp` if the client closes the connection before."""
        answer = asyncio.ensure_future(self.server.endpoint.answer(method, path, authorization, body))
        closed = asyncio.ensure_future(self.reader.read(CHUNK))
        try:
            await asyncio.wait({answer, closed}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done() and (early := closed.result()):
                self.http.receive_data(early)  # of the next request
            elif not answer.done():
                raise HungUp
            return await answer
        finally:
            for task in (answer, closed):
                task.cancel()
            await asyncio.gather(answer, closed, return_exceptions=True)

    async def _send(self, reply: HttpReply, *, close: bool, bodiless: bool = False) -> None:
        """Send a reply. `TimeoutError` for a client that does not read it."""
        headers = [("content-type", reply.content_type), ("content-length", str(len(reply.body)))]
        headers += [("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
        headers += [("connection", "close")] * close
        phrase = HTTPStatus(reply.status).phrase.encode()
        self._write(h11.Response(status_code=reply.status, headers=headers, reason=phrase))
        if not bodiless:
            self._write(h11.Data(data=reply.body))
        self._write(h11.EndOfMessage())
        async with asyncio.timeout(self.server.patience.reply_read_seconds):
            await self.writer.drain()

    def _write(self, event: h11.Event) -> None:
        self.writer.write(self.http.send(event) or b"")


def _check_host(host: str) -> None:
    """RequestError unless a request is for this machine by its name: a web page's own name is not."""
    if not is_this_machine(re.sub(r":\d+$", "", host).strip("[]").lower()):
        raise RequestError("the endpoint serves this machine only", status=403, code="host_not_allowed")


def _refusal(what: str, status: int) -> HttpReply:
    return HttpReply.of(RequestError(f"the request is not HTTP/1.1: {what}", status=status))
