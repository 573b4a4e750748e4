"""Engines that pass weights on to other hosts, over TLS: bytes and bits, and everything that may fail on the way."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.core import EngineLost, GroupwiseError, Storage, Usage, in_daemon_loop
from groupwise.data import Generation
from groupwise.engines import Fleet, IncomingWeightsStore, RemoteEngine, TlsAddress
from groupwise.engines.remote import host_uploads, sending_turns
from groupwise.engines.remote import remote_engine as remotes
from groupwise.engines.remote import server as serving
from groupwise.engines.remote.host_uploads import TRAINER, Destination, HostUploads
from groupwise.engines.remote.incoming_weights import IncomingWeights
from groupwise.engines.remote.weights_file import WeightsFile, write_weights
from tests.engines.lines import blank, changed, engine, pair, run, server, weights
from tests.engines.receiving_engine import SECRET
from tests.engines.test_host_uploads import all_have, bytes_of_weights, fleet, received, store
from tests.engines.test_tls import KEY, served
from tests.processes import HASTE, PATIENCE, hasten
from tests.rollout.fakes import decoder, request

__all__ = ["received"]  # a fixture
HOSTS = tuple("abcdefghi")


async def published_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Generation], dict[str, float]]:
    """The answers of two versions and the figures of the first. No copy leaves the trainer before all hosts wait."""
    model, receive, groups = decoder(), RemoteEngine.receive, list[Fleet]()

    async def once_all_wait(self: RemoteEngine, file: WeightsFile) -> None:
        while not file.version and len(self.uploads._locks) < len(HOSTS):
            await asyncio.sleep(0.001)
        await receive(self, file)

    monkeypatch.setattr(RemoteEngine, "receive", once_all_wait)
    async with fleet(tmp_path, HOSTS) as group:
        groups.append(group)
        await group.load(0, weights(model))
        await all_have(group, 0, len(HOSTS))
        answers, figures = [await group.sample(request(i)) for i in range(3)], group.figures()
        await group.load(1, changed(model))
        await all_have(group, 1, len(HOSTS))
        for replica in group.replicas:
            answers += [await replica.sample(request(9))]
    return answers, figures


def test_the_trainer_sends_to_few_hosts_and_these_pass_the_weights_on(
    tmp_path: Path, received: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine hosts: the trainer sends four copies, or a fifth when all four arrive at once. The bits are the same."""
    size = bytes_of_weights(tmp_path)
    answers, figures = run(published_to_all(tmp_path, monkeypatch))
    assert received == dict.fromkeys(HOSTS, 2 * size)
    assert figures["engine/sent_bytes"] == 9 * size and figures["engine/send_seconds"] > 0
    assert figures["engine/passed_bytes"] in (4 * size, 5 * size)
    for module in (host_uploads, sending_turns):
        monkeypatch.setattr(module, "MOST_RECEIVERS", len(HOSTS))
    without, figures = run(published_to_all(tmp_path, monkeypatch))
    assert figures["engine/passed_bytes"] == 0 and without == answers


@asynccontextmanager
async def two_hosts(
    tmp_path: Path, file: WeightsFile
) -> AsyncIterator[tuple[RemoteEngine, RemoteEngine, IncomingWeightsStore]]:
    """An engine that has received a file, one on another host that has not, and the store of the first one."""
    first, second = store(tmp_path / "a"), store(tmp_path / "b")
    async with served(blank(), first) as here, served(blank(), second) as there:
        holder, receiver = [await RemoteEngine.connect(x, secret=SECRET, deadline=PATIENCE) for x in (here, there)]
        await holder.fetch(file)
        await receiver._call("load", version=3, sha256=file.sha256, trainer=receiver._trainer)
        yield holder, receiver, first


def closed_port(to: Destination) -> Destination:
    """A destination where nothing listens."""
    with serving.socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    return replace(to, address=str(TlsAddress("127.0.0.1", port, KEY.fingerprint)))


FAILURES: dict[str, tuple[Callable[[Destination], Destination], type[Exception], str]] = {
    "unreachable": (closed_port, EngineLost, "no engine listens on"),
    "another certificate": (
        lambda to: replace(to, address=to.address.partition("=")[0] + "=" + "0" * 64), Usage, "another certificate"
    ),
    "another host at this address": (lambda to: replace(to, host="1" * 64), Usage, "of another host here"),
    "another trainer": (lambda to: replace(to, trainer="two"), EngineLost, "by the trainer that loads them"),
    "no address of TLS": (lambda to: replace(to, address="one.sock"), ValueError, "address is not HOST:PORT"),
    "an address without a certificate": (
        lambda to: replace(to, address=to.address.partition("#")[0]), ValueError, "is not HOST:PORT"
    ),
}  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
def test_an_engine_sends_nothing_to_another_engine_than_the_one_that_is_meant(
    failure: str, tmp_path: Path, received: Counter[str]
) -> None:
    """The error says why, and both engines go on."""
    change, kind, reason = FAILURES[failure]
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            with pytest.raises(kind, match=reason):
                await holder.pass_on(file, change(receiver.destination))
            assert not received["b"] and not holder.cause and not receiver.cause
            await holder.pass_on(file, receiver.destination)
            await receiver.fetch(file)
            assert received == {"a": file.path.stat().st_size, "b": file.path.stat().st_size}
            assert await receiver.score((1, 2), (3,)) == await holder.score((1, 2), (3,))

    run(go())


@pytest.mark.parametrize("failure", ["unreachable", "another certificate"])
def test_only_the_engine_that_connects_says_what_is_at_an_address(
    failure: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else a trainer could look at the network of that host: at certificates, and at which names exist."""
    change = FAILURES[failure][0]
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> tuple[GroupwiseError, str]:
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            with pytest.raises(GroupwiseError) as caught:
                await holder.pass_on(file, change(receiver.destination))
            return caught.value, receiver.destination.address.partition("=")[2]

    error, fingerprint = run(go())
    assert error.evidence == "the engine that connects prints the reason" and fingerprint not in str(error)
    printed = capfd.readouterr().err
    assert printed.startswith(f"cannot pass weights on: {error.what}\n")
    assert (fingerprint if failure == "another certificate" else "seen: Connect") in printed


def test_an_engine_sends_no_weights_that_another_one_received(tmp_path: Path, received: Counter[str]) -> None:
    """They may be those of another run: who knows their hash may load them on this host, and not have them sent."""
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (_, receiver, _), served(blank(), store(tmp_path / "a")) as beside:
            other = await RemoteEngine.connect(beside, secret=SECRET, deadline=PATIENCE)
            await other.fetch(file)
            assert other.version == 3 and received["a"] == file.path.stat().st_size
            with pytest.raises(Storage, match="no weights of this hash"):
                await other.pass_on(file, receiver.destination)
            assert not received["b"]

    run(go())


def test_an_address_that_is_silent_is_given_up_within_the_deadline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The engine has time for it: its own deadline counts from there on."""
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            listener = await asyncio.start_server(silent, "127.0.0.1", 0)
            port = listener.sockets[0].getsockname()[1]
            holder.deadline = HASTE
            to = replace(receiver.destination, address=str(TlsAddress("127.0.0.1", port, KEY.fingerprint)))
            passing = asyncio.create_task(holder.pass_on(file, to))
            await asyncio.sleep(0)  # it is sent
            assert [call.allowed_extra_seconds for call in holder._pending.values()] == [3 * HASTE]
            with pytest.raises(EngineLost, match="no engine listens on"):
                await passing
            assert f"it did not answer within {HASTE:g} s" in capfd.readouterr().err and not holder.cause
            listener.close()

    run(go())


def test_an_engine_without_the_file_any_more_says_so_and_leaves_no_link(tmp_path: Path) -> None:
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (holder, receiver, has):
            await holder.pass_on(file, receiver.destination)
            assert [path.name[:9] for path in has.directory.iterdir()] == ["received-"]
            has.clear()
            with pytest.raises(Storage, match="no weights of this hash"):
                await holder.pass_on(file, receiver.destination)
            assert not [*has.directory.iterdir()]

    run(go())


@pytest.mark.parametrize(
    "wrong",
    [{"sha256": x} for x in ("../" + "0" * 61, "x", 5, None)]
    + [{"deadline": x} for x in (-1, "1", float("inf"), None, True)]
    + [{"address": x} for x in ("a\0b", 5, None, [])]
    + [{"host": 5}, {"trainer": None}],
    ids=str,
)
def test_each_field_of_a_request_to_pass_weights_on_is_checked(wrong: dict[str, Any], tmp_path: Path) -> None:
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            to = receiver.destination
            fields = {"sha256": file.sha256, "deadline": 1.0, "address": to.address, "host": to.host, "trainer": "one"}
            (name,) = wrong
            with pytest.raises(ValueError, match=name if name != "host" else "names"):
                await holder._call("pass_on", **{**fields, **wrong})

    run(go())


def test_only_the_connection_that_loads_weights_may_have_them_sent(tmp_path: Path, received: Counter[str]) -> None:
    """Not another one that knows the secret, and on a socket of this host nobody."""
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            for name in ("", holder._trainer):  # the trainer's other connection does not load
                stranger = await RemoteEngine.connect(
                    TlsAddress.parse(holder._address) or Path(), secret=SECRET, trainer=name
                )
                with pytest.raises(Usage, match="only the connection that loads weights"):
                    await stranger.pass_on(file, receiver.destination)
            local = RemoteEngine(*await pair(server(blank()).connection), name="local", deadline=PATIENCE)
            await local.hello(PATIENCE)
            with pytest.raises(Usage, match="sends no weights to other hosts"):
                await local.pass_on(file, receiver.destination)
            assert not received["b"]

    run(go())


def stopped_at_first_part(monkeypatch: pytest.MonkeyPatch, host: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Events: the first part of weights has arrived at a host, and it may be written there. Later ones are at once."""
    arrived, go_on, add = asyncio.Event(), asyncio.Event(), IncomingWeights.add

    async def waits(self: IncomingWeights, offset: int, part: bytes) -> None:
        if self.path.parent.parent.name == host and not arrived.is_set():
            arrived.set()
            await go_on.wait()
        await add(self, offset, part)

    monkeypatch.setattr(IncomingWeights, "add", waits)
    return arrived, go_on


def test_parts_that_arrive_elsewhere_are_work_of_the_engine_that_sends_them(tmp_path: Path) -> None:
    """So a slow network does not look like an engine that does nothing."""
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            before = (await holder._call("hello"))["steps"]
            await holder.pass_on(file, receiver.destination)
            assert (await holder._call("hello"))["steps"] == before + 1

    run(go())


def test_a_host_that_goes_on_after_a_stop_does_not_replace_newer_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver has the next version meanwhile. It refuses all parts of the one before, the first and others."""
    monkeypatch.setattr(remotes, "LARGEST_PART", 500)
    old, new = (write_weights(tmp_path, i, weights(decoder(spread=i / 10))) for i in (3, 4))

    async def go() -> None:
        arrived, go_on = stopped_at_first_part(monkeypatch, "b")
        async with two_hosts(tmp_path, old) as (holder, receiver, _):
            (there,) = (tmp_path / "b").iterdir()
            passing = asyncio.create_task(holder.pass_on(old, receiver.destination))
            await arrived.wait()
            await receiver.fetch(new)
            go_on.set()
            with pytest.raises((Usage, ValueError)):
                await passing
            for _ in range(2):
                with pytest.raises(Usage, match="not the weights that the trainer loads"):
                    await holder.pass_on(old, receiver.destination)
                assert [path.name[9:-12] for path in there.iterdir()] == [new.sha256]

    run(go())


def test_a_request_to_pass_weights_on_that_is_cancelled_ends_at_the_receiver_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        arrived, _ = stopped_at_first_part(monkeypatch, "b")
        async with two_hosts(tmp_path, file) as (holder, receiver, _):
            (there,) = (tmp_path / "b").iterdir()
            passing = asyncio.create_task(holder.pass_on(file, receiver.destination))
            await arrived.wait()
            assert [*there.iterdir()]
            passing.cancel()
            while [*there.iterdir()]:
                await asyncio.sleep(0.001)
            await receiver.fetch(file)

    run(go())


def test_an_upload_that_is_cancelled_before_its_thread_runs_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, threads, runs = list[int](), list[threading.Thread](), threading.Event()

    class Late(threading.Thread):
        def run(self) -> None:
            threads.append(self)
            assert runs.wait(PATIENCE)
            super().run()

    async def work() -> None:
        begun.append(1)

    async def go() -> None:
        task = asyncio.create_task(in_daemon_loop(work))
        while not threads:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(threading, "Thread", Late)
    run(go())
    runs.set()
    threads[0].join(PATIENCE)
    assert not begun and not threads[0].is_alive()


@asynccontextmanager
async def busy_trainer(uploads: HostUploads, until: asyncio.Event) -> AsyncIterator[None]:
    """A trainer that may send to one host at a time, and does, until an event."""
    begun = asyncio.Event()

    async def send() -> None:
        async with uploads._turns.turn(lambda: {TRAINER: None}):
            begun.set()
            await until.wait()

    task = asyncio.create_task(send())
    await begun.wait()
    yield
    until.set()
    await task


@contextmanager
def process_of_an_engine(host: Path) -> Iterator[tuple["subprocess.Popen[str]", TlsAddress]]:
    """A process with an engine, and its address."""
    host.mkdir()
    words = [sys.executable, "-m", "tests.engines.receiving_engine", str(host), "127.0.0.1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        address = TlsAddress.parse(process.stdout.readline().strip())
        assert address is not None
        yield process, address
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda x: x.name)
def test_the_trainer_sends_in_the_place_of_a_host_that_is_killed_or_stopped_while_it_passes_weights_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (host_uploads, sending_turns):
        monkeypatch.setattr(module, "MOST_RECEIVERS", 1)
    model, lines = decoder(), list[str]()
    file = write_weights(tmp_path, 3, weights(model))

    async def go(process: "subprocess.Popen[str]", address: TlsAddress) -> tuple[float, ...]:
        arrived, ended, uploads = stopped_at_first_part(monkeypatch, "b")[0], asyncio.Event(), HostUploads(lines.append)
        async with served(blank(), store(tmp_path / "b")) as there:
            connect = [RemoteEngine.connect(x, secret=SECRET, deadline=PATIENCE) for x in (address, there)]
            holder, receiver = await asyncio.gather(*connect)
            holder.uploads = receiver.uploads = uploads
            holder.on_loss = ended.set
            await holder.fetch(file)
            async with busy_trainer(uploads, ended):
                fetching = asyncio.create_task(receiver.fetch(file))
                await arrived.wait()
                process.send_signal(number)
                if number == signal.SIGSTOP:
                    hasten(holder)
                await fetching
            assert holder.cause and uploads.figures()["engine/passed_bytes"] == 0
            return await receiver.score((1, 2), (3, 4))

    with process_of_an_engine(tmp_path / "a") as (process, address):
        answer = run(go(process, address))
    assert answer == run(engine(model).score((1, 2), (3, 4)))
    (line,) = lines
    assert "cannot pass weights on to 127.0.0.1" in line and "is lost (" in line and line.endswith("from now on")
