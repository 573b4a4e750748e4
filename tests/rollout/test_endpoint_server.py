"""The endpoint over HTTP: the same bytes as without, hostile requests, clients that hang up, many agents at once."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from groupwise.data import Draw, GenerationRequest, Ids, Outcome, Prompt
from groupwise.environments import call_format
from groupwise.models import find_template
from groupwise.rollout.agents import http_server
from groupwise.rollout.agents import runner as runner_file
from groupwise.rollout.agents.endpoint import MOST_BYTES, Endpoint
from groupwise.rollout.agents.episode import Episode
from groupwise.rollout.agents.http_server import EndpointServer, Patience
from tests.models.test_templates import trained
from tests.rollout.fakes import FakeEngine, decoder, engine, sampler_of, sampling
from tests.rollout.test_agents import QWEN, Client, Shuffled, ran, user

CHAT = "/v1/chat/completions"


class Served:
    """An open episode behind a server: its URL, its key, and requests to it."""

    def __init__(self, server: EndpointServer, url: str, key: str, episode: Episode) -> None:
        self.server, self.url, self.key, self.episode = server, url, key, episode
        self.port = int(url.split(":")[2].split("/")[0])

    def request(self, text: str = "a", **body: Any) -> bytes:
        """A chat request as bytes of HTTP."""
        content = json.dumps({"model": "policy", "messages": [user(text)], **body}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.key}\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes) -> tuple[int, dict[str, str], Any]:
        """The status, headers and JSON of the reply to these bytes; status 0 for a connection closed without one."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await reply_from(reader)
        finally:
            writer.close()

    async def post(self, text: str, **body: Any) -> dict[str, Any]:
        status, _, reply = await self.raw(self.request(text, **body))
        assert status == 200, reply
        return reply


async def reply_from(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}, None
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body) if body[:1] == b"{" else body


@asynccontextmanager
async def served(answer: Callable[[GenerationRequest], Any], **patience: float) -> AsyncIterator[Served]:
    """A server with one open episode, over a scripted engine."""
    vocabulary = trained(QWEN)
    endpoint = Endpoint()
    sampler = sampler_of(
        FakeEngine(answer), Draw(4, Prompt("p", ()), 1), tokenizer=vocabulary, sampling=sampling(max_tokens=900)
    )
    episode = Episode(sampler, sampler.draw, 0, find_template("chat", vocabulary), call_format(QWEN), 1.0)
    server = EndpointServer(endpoint, Patience(**patience))
    async with endpoint.open(episode) as (key, _), server.open() as url:
        yield Served(server, url, key, episode)


def says(text: str = "one") -> Callable[[GenerationRequest], Ids]:
    vocabulary = trained(QWEN)
    return lambda request: (*vocabulary.encode(text), min(vocabulary.eos_ids))


def run(work: Callable[[Served], Awaitable[None]], answer: Any = None, **patience: float) -> None:
    async def go() -> None:
        async with served(answer or says(), **patience) as at:
            await work(at)

    asyncio.run(asyncio.wait_for(go(), 60))


# Bytes


async def turns(row: Any, client: Client) -> float:
    """Two conversations: of two turns, and of one with three choices."""
    first = await client.chat([user("a")], max_tokens=5)
    second = await client.chat([user("a"), first, user("b")], max_tokens=7)
    await client.post(messages=[user("c")], n=3, max_tokens=4, stream=True)
    return float(len(second["content"]) % 5)


@pytest.mark.parametrize(("engines", "delays"), [(1, [0]), (2, [40, 3, 0, 17, 9]), (3, [0, 200, 5])])
def test_samples_are_equal_with_and_without_http(
    monkeypatch: pytest.MonkeyPatch, engines: int, delays: list[int]
) -> None:
    """Over the socket, each agent keeps its connection; three of them run at once, and engines take their time."""
    vocabulary = trained(QWEN)
    model, urls = decoder(vocabulary_size=720, max_positions=1024, spread=0.6), list[str]()

    async def over_socket(row: Any, client: Any) -> float:
        async with EndpointServer(client.endpoint).open() as url, httpx2.AsyncClient(trust_env=False) as http:
            urls.append(url)
            client.http = http
            client.http.base_url = url
            return await turns(row, client)

    def clients(endpoint: Endpoint) -> Callable[[str], Client]:
        def client(key: str) -> Client:
            made = Client(endpoint, key)
            made.endpoint = endpoint  # type: ignore[attr-defined]
            return made

        return client

    monkeypatch.setattr(runner_file, "openai_clients", clients)
    slow = Shuffled([engine(model, vocabulary, seed=3) for _ in range(engines)], delays)
    there = ran(over_socket, slow, vocabulary, n=3)[0].samples
    here = ran(turns, engine(model, vocabulary, seed=3), vocabulary, n=3)[0].samples
    assert len(urls) == 3 and len({s.tokens for s in here}) > 9, "the policy is not collapsed"
    assert list(map(repr, there)) == list(map(repr, here))


def test_a_plain_agent_runs_in_a_thread_and_its_key_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, seen = trained(QWEN), list[Any]()
    ended = threading.Event()

    def client(url: str, key: str) -> httpx2.Client:
        return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False)

    def ask(http: httpx2.Client, text: str) -> Any:
        return http.post("/chat/completions", json={"model": "policy", "messages": [user(text)]})

    def plain(row: Any, http: httpx2.Client) -> float:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(ask(http, "a").json()["choices"][0]["message"]["content"])
        return 0.5

    def late(row: Any, http: httpx2.Client) -> float:
        ended.wait(20)
        seen.append(ask(http, "b").status_code)
        return 1.0

    def leaves(row: Any, http: httpx2.Client) -> float:
        raise SystemExit(3)

    def sample(agent: Any, **runner: Any) -> Any:
        monkeypatch.setattr(runner_file, "plain_clients", lambda: client)
        (made,) = ran(agent, says(), vocabulary, runner=runner)[0].samples
        return made.verdict

    assert sample(plain).value == 0.5 and seen == ["one"]
    verdict = sample(late, deadline=0.05)
    assert verdict.outcome is Outcome.unverifiable and "within 0.05 seconds" in verdict.cause
    ended.set()
    assert "SystemExit: 3" in sample(leaves).cause


# Hostile requests


def test_requests_that_are_refused_have_the_form_of_openai() -> None:
    async def work(at: Served) -> None:
        good = at.request()
        port = f":{at.port}".encode()
        head, _, body = good.partition(b"\r\n\r\n")
        for path in (b"/", b"/v1", b"//v1/chat/completions", b"/v1/../../etc/passwd", b"/v1/%2e%2e/x", b"http://evil/v1/models",
                     b"/v1/chat/completions/", b"*", b"/" + b"x" * 9000):  # fmt: skip
            status, _, reply = await at.raw(good.replace(CHAT.encode(), path, 1))
            assert (status, reply["error"]["code"]) == (404, "unknown_url"), path
        cases: list[tuple[bytes, int]] = [
            (good.replace(b"127.0.0.1" + port, b"evil.example" + port), 403),
            (good.replace(b"127.0.0.1" + port, b"127.0.0.1.evil.example"), 403),
            (good.replace(at.key.encode(), b"sk-1"), 401),
            (good.replace(b"Authorization: Bearer", b"X-Key:"), 401),
            (good.replace(b"POST", b"GET"), 405),
            (good.replace(b"POST", b"OPTIONS"), 405),
            (head.replace(b"POST /v1/chat/completions", b"GET /v1/models?x=1") + b"\r\n\r\n" + body, 200),
            (head + b"\r\nX: " + b"y" * 40_000 + b"\r\n\r\n" + body, 431),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403),
            (head.replace(f"Content-Length: {len(body)}".encode(), b"Content-Length: x") + b"\r\n\r\n", 400),
            (head + b"\r\nContent-Length: 3\r\n\r\n" + body, 400),
        ]  # fmt: skip
        for data, expected in cases:
            status, headers, reply = await at.raw(data)
            assert status == expected, (data[:99], reply)
            assert not any(name.startswith("access-control") for name in headers)
            assert expected == 200 or reply["error"]["message"]
        assert not at.episode.answered_calls

    run(work)


def test_a_body_is_bounded_before_it_is_read() -> None:
    async def work(at: Served) -> None:
        head, _, _ = at.request().partition(b"Content-Length")
        _, writer = await at.connect()
        writer.write(head + f"Content-Length: {MOST_BYTES * 64}\r\n\r\n".encode())
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 3 * MOST_BYTES:
                writer.write(bytes(1 << 20))
                await writer.drain()
                sent += 1 << 20
        assert sent < 2 * MOST_BYTES, "most of it is not read"
        chunks = b"".join(f"{1 << 20:x}\r\n".encode() + bytes(1 << 20) + b"\r\n" for _ in range(17))
        status, _, reply = await at.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert status in (0, 413), reply

    run(work)


def test_slow_and_silent_clients_lose_their_connection() -> None:
    async def work(at: Served) -> None:
        for data in (b"", b"POST /v1/chat", at.request()[:-3]):
            reader, writer = await at.connect()
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
        assert (await at.post("a"))["choices"][0]["message"]["content"] == "one"

    run(work, head_seconds=0.1, body_seconds=0.1)


def test_idle_connections_keep_no_agent_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 4)

    async def work(at: Served) -> None:
        idle = [await at.connect() for _ in range(4)]
        while len(at.server.idle_connections) < 4:
            await asyncio.sleep(0)
        assert (await at.post("a"))["object"] == "chat.completion"
        assert await idle[0][0].read() == b"", "the one that was idle for longest is closed"
        assert not idle[3][0].at_eof()
        for _, writer in idle:
            writer.close()

    run(work)


def test_a_server_that_is_full_refuses_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    free = asyncio.Event()

    async def waits(request: GenerationRequest) -> Ids:
        await free.wait()
        return says()(request)

    async def work(at: Served) -> None:
        calls = [asyncio.ensure_future(at.post(text)) for text in "ab"]
        while at.episode.request_count < 2:
            await asyncio.sleep(0)
        status, _, reply = await at.raw(at.request("c"))
        assert (status, reply["error"]["type"]) == (503, "server_error")
        free.set()
        assert all(reply["usage"]["completion_tokens"] for reply in await asyncio.gather(*calls))

    run(work, waits)


# Connections


def test_a_connection_is_kept_and_takes_requests_ahead_of_their_turn() -> None:
    free = asyncio.Event()

    async def waits(request: GenerationRequest) -> Ids:
        await free.wait()
        return says()(request)

    async def work(at: Served) -> None:
        reader, writer = await at.connect()
        writer.write(at.request("a"))
        while not at.episode.request_count:
            await asyncio.sleep(0)
        writer.write(at.request("b", stream=True))  # while the first one is answered
        await asyncio.sleep(0.05)
        free.set()
        writer.write(at.request("c").replace(b"Content-Length", b"Expect: 100-continue\r\nContent-Length"))
        replies = [await reply_from(reader) for _ in range(2)]
        assert [status for status, *_ in replies] == [200, 200]
        assert replies[1][2].endswith(b"data: [DONE]\n\n") and replies[1][1]["content-type"] == "text/event-stream"
        assert (await reply_from(reader))[0] == 200
        writer.close()
        assert len(at.episode.answered_calls) == 3

    run(work, waits)


def test_a_client_that_hangs_up_gets_the_kept_answer_when_it_repeats_its_request() -> None:
    """The bytes do not depend on the connection: one call, whose answer the second request gets."""
    free, made = asyncio.Event(), list[GenerationRequest]()

    async def waits(request: GenerationRequest) -> Ids:
        made.append(request)
        await free.wait()
        return says()(request)

    async def work(at: Served) -> None:
        _, writer = await at.connect()
        writer.write(at.request("a"))
        while not made:
            await asyncio.sleep(0)
        writer.close()
        (opened,) = at.server.endpoint.open_episodes.values()
        while not opened.abandoned_calls:
            await asyncio.sleep(0)
        again = asyncio.ensure_future(at.post("a"))
        while opened.abandoned_calls:
            await asyncio.sleep(0)
        free.set()
        reply = await again
        assert reply["choices"][0]["message"]["content"] == "one" and reply["id"] == "chatcmpl-4-0-0"
        assert len(made) == len(at.episode.answered_calls) == 1
        await at.post("a")
        assert len(made) == 2, "a request after a reply is another one"

    run(work, waits)


def test_a_stream_that_is_left_half_read_is_one_answer() -> None:
    async def work(at: Served) -> None:
        reader, writer = await at.connect()
        writer.write(at.request("a", stream=True))
        await reader.readexactly(20)
        writer.transport.abort()
        await at.post("b")
        assert len(at.episode.answered_calls) == 2

    run(work, says("word " * 90))


def test_the_key_of_an_episode_is_worthless_after_it_and_for_another() -> None:
    async def never(request: GenerationRequest) -> Ids:
        await asyncio.Event().wait()
        return ()

    async def work(at: Served) -> None:
        endpoint, other = at.server.endpoint, at.episode
        async with endpoint.open(other) as (key, _):
            assert key != at.key
            reader, writer = await at.connect()
            writer.write(at.request().replace(at.key.encode(), key.encode()))
            while not other.request_count:
                await asyncio.sleep(0)
        status, _, reply = await reply_from(reader)
        assert (status, reply["error"]["message"]) == (401, "the episode has ended")
        writer.write(at.request().replace(at.key.encode(), key.encode()))
        assert (await reply_from(reader))[0] == 401
        writer.close()
        assert not other.answered_calls

    run(work, never)


def test_two_hundred_agents_at_once_and_an_end_of_all_connections() -> None:
    async def work(at: Served) -> None:
        replies = await asyncio.gather(*(at.post(f"agent {i}") for i in range(200)))
        assert len({reply["id"] for reply in replies}) == 200 == len(at.episode.answered_calls)
        reader, _ = await at.connect()
        while not at.server.idle_connections:
            await asyncio.sleep(0)
        await at.server._close()
        assert await reader.read() == b""
        with pytest.raises(OSError):
            await at.connect()

    run(work)
