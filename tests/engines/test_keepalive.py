"""Keepalive: each side ends a connection to a host that is gone, also while nothing is sent."""

import asyncio
import shutil
import socket
import subprocess
import sys
from typing import Any

import pytest

from groupwise.core import EngineLost
from groupwise.data import GenerationRequest
from groupwise.engines import RemoteEngine
from groupwise.engines.remote import remote_engine as remotes
from groupwise.engines.remote import tls_server as listening
from groupwise.engines.remote.keepalive import GONE, LENGTH, OPTIONS, VANISHED, is_gone, is_unreachable
from tests.engines.lines import run
from tests.engines.test_tls import SECRET, fake, served
from tests.rollout.fakes import FakeEngine, request


def options(connection: Any) -> dict[str, int]:
    return {name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS}


@pytest.mark.skipif(sys.platform != "linux", reason="the options have other names")
def test_both_sides_ask_a_silent_host_and_give_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel asks, so a trainer that learns for minutes asks, too."""
    accepted: list[socket.socket] = []
    opened = listening.opened

    async def recorded(client: socket.socket, context: Any) -> Any:
        accepted.append(client)
        return await opened(client, context)

    monkeypatch.setattr(listening, "opened", recorded)

    async def go() -> None:
        async with served(fake()) as address:
            client = await RemoteEngine.connect(address, secret=SECRET)
            for connection in (client._writer.get_extra_info("socket"), accepted[0]):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) and options(connection) == OPTIONS

    run(go())
    assert OPTIONS["TCP_KEEPIDLE"] + OPTIONS["TCP_KEEPINTVL"] * OPTIONS["TCP_KEEPCNT"] == VANISHED


def test_a_host_is_gone_if_it_acknowledges_nothing_and_not_if_its_process_is_busy() -> None:
    class Connection(socket.socket):
        def __init__(self, *, repeated: int = 0, asked: int = 0, data: int = 9000, acknowledged: int = 9000) -> None:
            numbers = [0] * 13
            numbers[11], numbers[12] = data, acknowledged
            self.info = bytes([1, 0, repeated, asked, 0, 0, 0, 0])
            self.info += b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)

        def getsockopt(self, level: int, option: int, length: int = 0) -> Any:
            return self.info[:length]

    def gone(**numbers: int) -> bool:
        return is_gone(Connection(**numbers))

    assert gone(repeated=3) and gone(asked=2)
    assert not gone() and not gone(asked=1), "a probe of a moment ago has no answer yet"
    assert not gone(repeated=3, acknowledged=1000) and not gone(repeated=3, data=4999)
    assert len(Connection().info) == LENGTH
    closed = socket.socket()
    closed.close()
    assert not is_gone(closed)


def test_the_errors_of_a_vanished_host_are_told_from_a_closed_connection() -> None:
    assert is_unreachable(TimeoutError(110, "timed out")) and is_unreachable(OSError(113, "no route to host"))
    assert not is_unreachable(None) and not is_unreachable(ConnectionResetError(104, "reset"))


def test_an_idle_engine_whose_host_is_gone_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, lost = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(remotes, "until_gone", lambda _: gone.wait())

    async def go() -> RemoteEngine:
        async with served(fake()) as address:
            client = await RemoteEngine.connect(address, secret=SECRET)
            client.on_loss = lost.set
            gone.set()
            await lost.wait()
            with pytest.raises(EngineLost):
                await client.sample(request())
            return client

    assert run(go()).cause == GONE


def test_an_engine_cancels_the_requests_of_a_trainer_whose_host_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, started, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(listening, "until_gone", lambda _: gone.wait())

    async def endless(_: GenerationRequest) -> tuple[int, ...]:
        started.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ()

    async def go() -> None:
        async with served(FakeEngine(endless)) as address:
            client = await RemoteEngine.connect(address, secret=SECRET)
            call = asyncio.create_task(client.sample(request()))
            await started.wait()
            gone.set()
            await cancelled.wait()
            with pytest.raises(EngineLost):
                await call

    run(go())


CUT = """
import asyncio, subprocess, sys
from groupwise.engines import EngineServer, RemoteEngine
from tests.engines.test_tls import SECRET, served
from tests.rollout.fakes import FakeEngine, request

ended, lost, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
connection = EngineServer.connection

async def watched(self, reader, writer):
    await connection(self, reader, writer)
    ended.set()

async def answer(_):
    asked.set()
    await asyncio.sleep(1)  # then the answer is under way
    return 7, 8

async def go():
    EngineServer.connection = watched
    async with served(FakeEngine(answer)) as address:
        client = await RemoteEngine.connect(address, secret=SECRET)
        client.on_loss = lost.set
        calls = [asyncio.create_task(client.sample(request()))] if "busy" in sys.argv else []
        if calls:
            await asked.wait()
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        if calls:
            client._send(77, "prefill", contexts=[])  # under way, too
        async with asyncio.timeout(60):
            await lost.wait()
            await ended.wait()
        print(client.cause)
        await asyncio.gather(*calls, return_exceptions=True)

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
asyncio.run(go())
"""


@pytest.mark.slow
@pytest.mark.parametrize("connection", ["idle", "busy"])
def test_both_sides_notice_that_the_link_is_cut(connection: str) -> None:
    """The loopback interface of a network namespace goes down: no packet says so. The engine's deadline is 60 s."""
    namespace = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("ip") or subprocess.run([*namespace, "ip", "link"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    words = [*namespace, sys.executable, "-c", CUT, connection]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.stdout == f"{GONE}\n", done.stderr
