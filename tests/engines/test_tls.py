"""Engines on other hosts: TLS, fingerprint and secret, weights in parts, and garbage on the port."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.core import EngineLost, MissingRequirement, Storage, Usage
from groupwise.data import Engine
from groupwise.engines import (
    EngineServer,
    EngineTlsKey,
    IncomingWeightsStore,
    RemoteEngine,
    Served,
    TlsAddress,
    WeightsFilesDirectory,
    listen_tls,
    read_secret,
)
from groupwise.engines.remote import remote_engine as remotes
from groupwise.engines.remote import tls_server as listening
from groupwise.engines.remote.secret import LEAST, VARIABLE, prove
from groupwise.engines.remote.tls import client_context, listener_on, reachable
from groupwise.engines.remote.weights_file import WeightsFile, write_weights
from groupwise.engines.remote.wire import LARGEST_GREETING, encode, read_message
from tests.engines.lines import HELLO, IDENTITY, LARGEST, blank, changed, engine, run, weights
from tests.processes import PATIENCE
from tests.rollout.fakes import VOCABULARY, FakeEngine, decoder, request
from tests.rollout.fakes import tokenizer as letters

KEY = EngineTlsKey.new()
SECRET = b"s" * LEAST


@asynccontextmanager
async def served(engine: Engine, uploads: IncomingWeightsStore | None = None) -> AsyncIterator[TlsAddress]:
    """The address of an engine that a task of this loop serves on the loopback interface."""
    listener = listener_on("127.0.0.1:0")
    server = EngineServer(engine, IDENTITY, vocabulary=VOCABULARY, largest=LARGEST, uploads=uploads)
    task = asyncio.create_task(listen_tls(server, listener, KEY, SECRET))
    try:
        yield reachable(listener, KEY)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def fake() -> FakeEngine:
    return FakeEngine(lambda _: (7, 8))


async def secured(address: TlsAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with TLS, before the secret."""
    return await asyncio.open_connection(address.host, address.port, ssl=client_context(), server_hostname="")


async def rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except OSError:  # the other side closed with our bytes unread
        return b""


def test_an_engine_on_another_host_gives_the_bits_of_the_native_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights arrive in many parts, twice, and nothing is left of them."""
    monkeypatch.setattr(remotes, "LARGEST_PART", 1000)
    requests = [request(i, num_top_logprobs=2) for i in range(4)]

    async def go(engine: Any) -> list[Any]:
        model = decoder()
        await engine.load(3, weights(model))
        first = await asyncio.gather(*map(engine.sample, requests))
        await engine.load(4, changed(model))
        return [*first, await engine.score((1, 2), (3, 4)), engine.version]

    async def over_tls() -> list[Any]:
        exchange = WeightsFilesDirectory(tmp_path)
        async with served(blank(), IncomingWeightsStore(exchange, 1 << 20)) as address:
            client = await RemoteEngine.connect(address, secret=SECRET, expected=IDENTITY)
            found = await go(client)
            assert [path.name[:9] for path in exchange.path.iterdir()] == ["received-"]  # for other engines of the host
            client.close()
            while [*exchange.path.iterdir()]:
                await asyncio.sleep(0.001)
        return found

    assert run(over_tls()) == run(go(engine(decoder())))


def test_weights_that_are_damaged_out_of_order_or_too_many_are_refused(tmp_path: Path) -> None:
    model = decoder()
    file = write_weights(tmp_path, 3, weights(model))
    size = file.path.stat().st_size

    async def go() -> None:
        exchange = WeightsFilesDirectory(tmp_path)
        async with served(blank(), IncomingWeightsStore(exchange, 1 << 20)) as address:
            client = await RemoteEngine.connect(address, secret=SECRET)
            with pytest.raises(Storage, match="not the file that was written"):
                await client.fetch(WeightsFile(3, file.path, "0" * 64))
            load = {"sha256": file.sha256, "size": size, "trainer": client._trainer}
            assert (await client._call("load", version=3, **load))["missing"]
            for part, arguments, kind, reason in (
                (b"x", {"offset": 5}, ValueError, "first part did not arrive"),
                (b"x" * 9, {"offset": 0, "size": 8}, ValueError, "a part of 9 bytes at 0"),
                (b"", {"offset": 0}, ValueError, "a part of 0 bytes"),
                (b"x", {"offset": 0, "size": 1 << 40}, Usage, "not the weights of this engine's model"),
                (b"x", {"offset": 0, "size": -1}, ValueError, "size is -1"),
                (b"x", {"offset": 0, "sha256": "../" + "0" * 61}, ValueError, "64 hexadecimal digits"),
                (b"x", {"offset": 0, "sha256": "0" * 64}, Usage, "not the weights that the trainer loads"),
                (b"x", {"offset": 0, "trainer": "another"}, EngineLost, "by the trainer that loads them"),
                (b"", {"file": str(file.path)}, ValueError, "offset"),
            ):
                with pytest.raises(kind, match=reason):
                    await client._call("upload", part, **{**load, **arguments})
            assert not [*exchange.path.iterdir()]
            await client._call("upload", b"x", **load, offset=0)
            assert len([*exchange.path.iterdir()]) == 1
            with pytest.raises(ValueError, match="1 of"):
                await client._call("upload", b"x", **load, offset=2)
            with pytest.raises(EngineLost, match="no complete weights"):
                await client.sample(request())
            await client._call("upload", b"x", **load, offset=0)
            client.close()
            while [*exchange.path.iterdir()]:
                await asyncio.sleep(0.001)
            again = await RemoteEngine.connect(address, secret=SECRET)
            await again.fetch(file)
            assert again.version == 3

    run(go())


def test_a_new_connection_of_the_trainer_that_loads_weights_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with served(blank(), IncomingWeightsStore(WeightsFilesDirectory(tmp_path), 1 << 20)) as address:
            first, again, other, unnamed = [
                await RemoteEngine.connect(address, secret=SECRET, trainer=trainer)
                for trainer in ("one", "one", "two", "")
            ]
            await first.fetch(file)
            for stranger in (other, unnamed):
                with pytest.raises(Usage, match="another connection loads"):
                    await stranger.fetch(file)
            await again.fetch(file)
            with pytest.raises(EngineLost, match="is lost"):
                await first.score((1, 2), (3,))
            assert again.version == 3 and (await again.score((1, 2), (3,))) == (await other.score((1, 2), (3,)))
            again.close()
            while True:  # the engine notices the end
                try:
                    await unnamed.fetch(file)
                    break
                except Usage:
                    await asyncio.sleep(0.001)
            with pytest.raises(Usage, match="another connection loads"):
                await (await RemoteEngine.connect(address, secret=SECRET)).fetch(file)

    run(go())


def test_without_the_secret_nobody_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PATIENCE", 1000.0)
    engine = fake()

    async def go() -> None:
        async with served(engine) as address:
            with pytest.raises(Usage, match="has another secret"):
                await RemoteEngine.connect(address, secret=b"t" * LEAST)
            reader, writer = await secured(address)  # a hello in place of a proof
            assert set(await read_message(reader, 1 << 20) or {}) == {"challenge"}
            writer.write(HELLO)
            assert await rest(reader) == b""
            reader, writer = await secured(address)  # a proof that no UTF-8 has
            writer.write(encode({"challenge": "0" * 64, "proof": "\ud800" * 64}))
            assert set(await read_message(reader, 1 << 20) or {}) == {"challenge"}
            assert await rest(reader) == b""
            reader, writer = await secured(address)  # the largest message of one who belongs
            writer.write((LARGEST_GREETING + 1).to_bytes(4, "big"))
            assert set(await read_message(reader, 1 << 20) or {}) == {"challenge"} and await rest(reader) == b""

    run(go())
    assert engine.calls == []


def test_a_proof_is_worth_nothing_on_another_connection_or_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(
        "groupwise.engines.remote.secret.encode", lambda message: sent.append(encode(message)) or sent[-1]
    )

    async def go() -> None:
        async with served(fake()) as address:
            reader, writer = await secured(address)
            await prove(reader, writer, SECRET, address.fingerprint, "engine")
            proof = next(data for data in sent if b"challenge" in data and b"proof" in data)
            reader, writer = await secured(address)
            writer.write(proof)
            await read_message(reader, 1 << 20)
            reply = await read_message(reader, 1 << 20)
            assert reply and "another one" in reply["error"]["what"]
            reader, writer = await secured(address)
            with pytest.raises(Usage, match="another secret"):
                await prove(reader, writer, SECRET, "0" * 64, "engine")

    run(go())


async def listening_on(serve: Callable[..., Awaitable[None]], **how: Any) -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, **how)
    return server, server.sockets[0].getsockname()[1]


def test_a_client_refuses_a_server_without_the_certificate_or_the_secret() -> None:
    heard: list[bytes] = []

    async def hears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await rest(reader))
        writer.close()

    async def pretends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode({"challenge": "0" * 64}))
        await read_message(reader, 1 << 20)
        writer.write(encode({"proof": "0" * 64}))

    async def go() -> None:
        context = KEY.context()
        server, port = await listening_on(hears, ssl=EngineTlsKey.new().context())
        with pytest.raises(Usage, match="has another certificate") as caught:
            await RemoteEngine.connect(TlsAddress("127.0.0.1", port, KEY.fingerprint), secret=SECRET)
        assert KEY.fingerprint in caught.value.evidence and "--key" in caught.value.fix
        server.close()
        while not heard:
            await asyncio.sleep(0.001)
        server, port = await listening_on(pretends, ssl=context)
        with pytest.raises(Usage, match="has another secret"):
            await RemoteEngine.connect(TlsAddress("127.0.0.1", port, KEY.fingerprint), secret=SECRET)
        server.close()

    run(go())
    assert heard == [b""]


def test_an_address_without_an_engine_is_lost_within_the_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n")
        writer.close()

    async def go() -> None:
        for serve, evidence in ((silent, "did not answer within 0.5 s"), (plain, "")):
            server, port = await listening_on(serve)
            with pytest.raises(EngineLost, match="no engine listens on") as caught:
                await RemoteEngine.connect(TlsAddress("127.0.0.1", port, KEY.fingerprint), secret=SECRET, deadline=0.5)
            assert evidence in caught.value.evidence and caught.value.evidence
            server.close()
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        with pytest.raises(EngineLost, match=f"no engine listens on 127.0.0.1:{port}"):
            await RemoteEngine.connect(TlsAddress("127.0.0.1", port, KEY.fingerprint), secret=SECRET)

    run(go())


@settings(max_examples=20)
@given(garbage=st.binary(max_size=200), secure=st.booleans())
@example(garbage=b"GET / HTTP/1.1\r\n\r\n", secure=False)
@example(garbage=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", secure=False)  # the begin of a real TLS greeting
@example(garbage=b"\xff\xff\xff\xff", secure=True)
@example(garbage=encode({"challenge": "0" * 64, "proof": 5, "bytes": 1 << 40}), secure=True)
@example(garbage=(900).to_bytes(4, "big") + b"[" * 900, secure=True)
def test_garbage_on_the_port_ends_its_connection_only(garbage: bytes, secure: bool) -> None:
    async def go() -> None:
        async with served(fake()) as address:
            good = await RemoteEngine.connect(address, secret=SECRET)
            connect = secured(address) if secure else asyncio.open_connection(address.host, address.port)
            reader, writer = await connect
            writer.write(garbage)
            await asyncio.sleep(0)
            assert (await good.sample(request())).tokens == (7, 8)
            writer.transport.abort() if secure else writer.write_eof()
            if not secure:
                assert len(await rest(reader)) < 100  # at most an alert of TLS
                writer.close()
            assert (await (await RemoteEngine.connect(address, secret=SECRET)).score((1, 2), (3,))) == (-2.0,)

    run(go())


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that waits long for strangers, of which it has at most two."""
    monkeypatch.setattr(listening, "STRANGERS", 2)
    for name in ("FIRST_BYTE", "PATIENCE"):
        monkeypatch.setattr(listening, name, 1000.0)


@pytest.mark.parametrize("secure", [False, True])
def test_strangers_are_few_and_keep_nobody_out(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def go() -> None:
        async with served(fake()) as address:
            good = await RemoteEngine.connect(address, secret=SECRET)
            stranger = (
                partial(secured, address) if secure else partial(asyncio.open_connection, "127.0.0.1", address.port)
            )
            strangers = [await stranger() for _ in range(4)]
            for reader, _ in strangers[:2]:
                await rest(reader)  # the oldest ones are closed
            assert (await good.sample(request())).tokens == (7, 8)
            assert (await (await RemoteEngine.connect(address, secret=SECRET)).sample(request())).tokens == (7, 8)
            for _, writer in strangers:
                writer.transport.abort()

    run(go())


def room_for(monkeypatch: pytest.MonkeyPatch, *, all_together: int, of_one_source: int) -> None:
    monkeypatch.setattr(listening, "STRANGERS", all_together)
    monkeypatch.setattr(listening, "FROM_ONE_SOURCE", of_one_source)


def ended_by(sources: str, *newcomers: str) -> list[int | None]:
    """Which of the connections from these sources, one letter each, is ended by each newcomer; None for none."""
    ends = [socket.socketpair() for _ in sources]
    strangers = {ours: source for (ours, _), source in zip(ends, sources)}
    ended: list[int | None] = []
    for newcomer in newcomers:
        before = [*strangers]
        listening.make_room(strangers, newcomer)
        gone = [index for index, (ours, _) in enumerate(ends) if ours in before and ours not in strangers]
        for index, (_, theirs) in enumerate(ends):
            theirs.setblocking(False)
            if index in gone:
                assert theirs.recv(1) == b""
        ended.append(gone[0] if gone else None)
        assert len(gone) <= 1
    for pair in ends:
        for end in pair:
            end.close()
    return ended


def test_the_host_with_most_strangers_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(monkeypatch, all_together=3, of_one_source=3)
    assert ended_by("abbba", "c", "c", "c", "c") == [1, 0, 2, None]


def test_a_source_address_has_few_of_the_places_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    room_for(monkeypatch, all_together=100, of_one_source=3)
    assert ended_by("abaab", "a", "b", "c") == [0, None, None]


def test_a_connection_that_is_closed_at_once_is_no_missing_engine() -> None:
    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def go() -> None:
        for how in ({}, {"ssl": KEY.context()}):
            server, port = await listening_on(closes, **how)
            with pytest.raises(EngineLost, match="ended the connection at once") as caught:
                await RemoteEngine.connect(TlsAddress("127.0.0.1", port, KEY.fingerprint), secret=SECRET)
            assert "too many connections" in caught.value.evidence
            server.close()

    run(go())


def test_a_stranger_gets_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends nothing, and one that sends no proof. A busy machine needs its time until TLS is up."""
    monkeypatch.setattr(listening, "FIRST_BYTE", 0.3)

    async def go() -> bytes:
        async with served(fake()) as address:
            silent, _ = await asyncio.open_connection(address.host, address.port)
            assert await rest(silent) == b""
            monkeypatch.setattr(listening, "FIRST_BYTE", PATIENCE)
            for seconds in (0.3, 1.0, 5.0, 30.0):
                monkeypatch.setattr(listening, "PATIENCE", seconds)
                with suppress(OSError):
                    secure, _ = await secured(address)
                    return await rest(secure)
            return b""

    assert b"challenge" in run(go())


def test_an_address_and_its_text() -> None:
    for text in (f"gpu-1.example:7000#sha256={'0' * 64}", f"[::1]:7000#sha256={'a' * 64}"):
        assert str(TlsAddress.parse(text)) == text
    for text in ("one.sock", "/run/engines/one:1", "."):
        assert TlsAddress.parse(text) is None
    for text in ("host:7000", f"host#sha256={'0' * 64}", "host:7000#sha256=00", f"host:70000#sha256={'0' * 64}"):
        with pytest.raises(ValueError, match="port" if "70000" in text else "FINGERPRINT"):
            Served(addresses=(text,))


def test_a_port_in_use_and_a_host_of_others_are_refused() -> None:
    with listener_on("127.0.0.1:0") as listener:
        port = listener.getsockname()[1]
        for text in (f"127.0.0.1:{port}", "192.0.2.1:7000", "7000", "127.0.0.1:70000"):
            with pytest.raises(Usage, match=f"cannot listen on {text}") as caught:
                listener_on(text)
            assert "--listen" in caught.value.fix
        assert reachable(listener, KEY) == TlsAddress("127.0.0.1", port, KEY.fingerprint)


def test_a_secret_comes_by_a_file_of_its_owner_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    file = tmp_path / "secret"
    with pytest.raises(Usage, match="need a secret, and there is none"):
        Served(addresses=(f"127.0.0.1:7000#sha256={'0' * 64}",)).build(
            decoder(model_family="qwen3"), letters(), seed=0, experts=None
        )
    with pytest.raises(Usage, match="cannot be read"):
        read_secret(str(file))
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o640)
    with pytest.raises(Usage, match="other users can open") as caught:
        read_secret(str(file))
    assert caught.value.evidence == "its mode is 640" and caught.value.fix == f"chmod 600 {file}"
    file.chmod(0o600)
    assert read_secret(str(file)) == SECRET
    file.write_text("short")
    with pytest.raises(Usage, match="has 5 characters"):
        read_secret(str(file))
    file.write_text("\n")
    with pytest.raises(Usage, match="is empty"):
        read_secret(str(file))
    monkeypatch.setenv(VARIABLE, SECRET.decode())
    assert read_secret("") == SECRET


def test_a_key_is_kept_in_a_file_and_a_damaged_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key.pem"
    key = EngineTlsKey.kept(path)
    assert EngineTlsKey.kept(path) == key and path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [path] and EngineTlsKey.new().fingerprint != key.fingerprint
    os.chmod(path, 0o644)
    with pytest.raises(Usage, match="other users can open"):
        EngineTlsKey.kept(path)
    for pem in (
        b"no key",
        key.pem.replace(b"PRIVATE KEY", b"SECRET KEY"),
        EngineTlsKey.new().pem[:300] + key.pem[300:],
    ):
        with pytest.raises(Usage, match="no private key with its certificate"):
            (EngineTlsKey(pem).fingerprint, EngineTlsKey(pem).context())
    with pytest.raises(Usage, match="cannot write the key"):
        EngineTlsKey.kept(tmp_path / "none" / "key.pem")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirement, match="openssl made no key"):
        EngineTlsKey.new()
