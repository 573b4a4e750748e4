"""Weights for engines on other hosts: one copy for each host, several parts under way, and hostile uploads."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.core import EngineLost
from groupwise.engines import (
    EngineServer,
    Fleet,
    IncomingWeightsStore,
    RemoteEngine,
    WeightsFilesDirectory,
    WeightsProbe,
)
from groupwise.engines.remote import incoming_weights
from groupwise.engines.remote import remote_engine as remotes
from groupwise.engines.remote.incoming_weights import IncomingWeights
from groupwise.engines.remote.weights_file import WeightsFile, write_weights
from groupwise.engines.remote.wire import MOST_PARTS, encode, read_message
from tests.engines.lines import HELLO, IDENTITY, LARGEST, blank, changed, engine, pair, run, weights
from tests.engines.test_tls import SECRET, served
from tests.engines.test_wire import JSON
from tests.processes import PATIENCE
from tests.rollout.fakes import VOCABULARY, FakeEngine, decoder, request, without_end_token


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes of weights that arrive, by the name of the host's directory."""
    counts: Counter[str] = Counter()
    add = IncomingWeights.add

    async def counted(self: IncomingWeights, offset: int, part: bytes) -> None:
        counts[self.path.parent.parent.name] += len(part)
        await add(self, offset, part)

    monkeypatch.setattr(IncomingWeights, "add", counted)
    return counts


def store(host: Path) -> IncomingWeightsStore:
    """The store of an engine on a host, which is a directory here."""
    host.mkdir(exist_ok=True)
    return IncomingWeightsStore(WeightsFilesDirectory(host), LARGEST)


@asynccontextmanager
async def fleet(tmp_path: Path, hosts: Sequence[str]) -> AsyncIterator[Fleet]:
    """A fleet of engines on these hosts, in tasks of this loop."""
    servings = [served(blank(), store(tmp_path / host)) for host in hosts]
    addresses = [await serving.__aenter__() for serving in servings]

    async def start(index: int) -> RemoteEngine:
        return await RemoteEngine.connect(addresses[index], secret=SECRET, trainer="one", deadline=PATIENCE)

    probe, exchange = WeightsProbe(decoder(), without_end_token(), 1e-3), WeightsFilesDirectory(tmp_path)
    try:
        yield Fleet(start, len(hosts), exchange=exchange, probe=probe, max_num_seqs=64, restarts=0)
    finally:
        for serving in servings:
            await serving.__aexit__(None, None, None)


async def all_have(group: Fleet, version: int, count: int) -> None:
    while [replica.version for replica in group.replicas] != [version] * count:
        await asyncio.sleep(0.001)


def bytes_of_weights(tmp_path: Path) -> int:
    return write_weights(tmp_path, 9, weights(decoder())).path.stat().st_size


def test_a_host_gets_each_version_once_whatever_the_number_of_its_engines(
    tmp_path: Path, received: Counter[str]
) -> None:
    """The bytes of an iteration are those of the model for each host."""
    size, model = bytes_of_weights(tmp_path), decoder()

    async def go() -> dict[str, float]:
        async with fleet(tmp_path, ("a", "a", "b", "a")) as group:
            await group.load(0, weights(model))
            await all_have(group, 0, 4)
            assert received == {"a": size, "b": size}
            await group.load(1, changed(model))
            await all_have(group, 1, 4)
            return group.figures()

    figures = run(go())
    assert received == {"a": 2 * size, "b": 2 * size}
    assert figures["engine/sent_bytes"] == 4 * size and figures["engine/send_seconds"] > 0


def test_an_engine_that_does_not_find_the_weights_of_its_host_gets_them(
    tmp_path: Path, received: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines report one host, falsely: so a lie, or a directory that is gone, costs bytes and nothing else."""
    monkeypatch.setattr(incoming_weights, "host_of", lambda directory: "one host")
    size, model = bytes_of_weights(tmp_path), decoder()

    async def go() -> None:
        async with fleet(tmp_path, ("a", "b")) as group:
            await group.load(0, weights(model))
            await all_have(group, 0, 2)

    run(go())
    assert received["a"] == received["b"] == size or sorted(received.values()) == [size, size]


def test_an_engine_that_never_finds_what_was_sent_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncomingWeightsStore, "find", lambda self, sha256: None)
    file = write_weights(tmp_path, 3, weights(decoder()))

    async def go() -> None:
        async with served(blank(), store(tmp_path / "a")) as address:
            await (await RemoteEngine.connect(address, secret=SECRET)).fetch(file)

    with pytest.raises(EngineLost, match="is lost") as caught:
        run(go())
    assert "does not find the weights" in caught.value.evidence


def test_after_a_failed_upload_the_next_engine_of_the_host_gets_the_weights(
    tmp_path: Path, received: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, model, failures = bytes_of_weights(tmp_path), decoder(), [1]
    upload = RemoteEngine.upload

    async def fails(self: RemoteEngine, file: WeightsFile, on_part: Any) -> None:
        if failures:
            failures.pop()
            raise self.fail("killed by the test")
        await upload(self, file, on_part)

    monkeypatch.setattr(RemoteEngine, "upload", fails)

    async def go() -> None:
        async with fleet(tmp_path, ("a", "a", "a")) as group:
            await group.load(0, weights(model))
            await all_have(group, 0, 2)

    run(go())
    assert received == {"a": size}


def test_a_window_of_parts_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are not written before so many have arrived: a trainer that waited for each answer would hang here."""
    monkeypatch.setattr(remotes, "LARGEST_PART", 500)
    file, model = write_weights(tmp_path, 3, weights(decoder())), decoder()
    assert file.path.stat().st_size > 500 * MOST_PARTS
    arrived, enough = [0], asyncio.Event()
    add = IncomingWeights.add

    async def waits(self: IncomingWeights, offset: int, part: bytes) -> None:
        arrived[0] += 1
        if arrived[0] == MOST_PARTS:
            enough.set()
        call = asyncio.create_task(add(self, offset, part))  # its place in the order is now
        await enough.wait()
        await call

    monkeypatch.setattr(IncomingWeights, "add", waits)

    async def go() -> tuple[float, ...]:
        async with served(blank(), store(tmp_path / "a")) as address:
            client = await RemoteEngine.connect(address, secret=SECRET)
            await client.fetch(file)
            return await client.score((1, 2), (3, 4))

    assert run(go()) == run(engine(model).score((1, 2), (3, 4)))


def test_only_complete_regular_files_of_fitting_size_are_found(tmp_path: Path) -> None:
    one, other, names = store(tmp_path / "a"), store(tmp_path / "a"), ["0" * 64, "1" * 64, "2" * 64, "3" * 64]
    assert one.host == other.host != store(tmp_path / "b").host
    (tmp_path / "text").write_text("not received")
    (other.directory / f"received-{names[0]}.safetensors").write_text("weights")
    (other.directory / f"received-{names[1]}.safetensors").symlink_to(tmp_path / "text")
    with (other.directory / f"received-{names[2]}.safetensors").open("wb") as file:
        file.truncate(LARGEST + 1)
    link, *missing = [one.find(name) for name in names]
    assert link and missing == [None] * 3 and [*one.directory.iterdir()] == [link]
    other.clear()
    assert [*other.directory.iterdir()] == [] and link.read_text() == "weights"


def test_a_system_that_does_not_number_its_starts_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_weights, "BOOT", tmp_path / "none")
    assert store(tmp_path / "a").host == ""


UPLOAD = st.dictionaries(
    st.sampled_from(["sha256", "size", "offset", "trainer", "version", "file", "bytes", "address", "host", "deadline"]),
    JSON | st.sampled_from(["0" * 64, "../" + "0" * 61, "/" * 64]) | st.integers(0, 9),
    max_size=5,
)
NOBODY = {"address": f"127.0.0.1:1#sha256={'0' * 64}", "host": "h", "deadline": 1.0}
GOOD = {"sha256": "0" * 64, "size": 8, "offset": 0, "trainer": "one", "version": 1, **NOBODY}
EIGHT_BYTES = {"sha256": sha256(b"12345678").hexdigest()}


@settings(max_examples=25)
@given(
    frames=st.lists(
        st.tuples(st.sampled_from(["upload", "pass_on", "load"]), UPLOAD, st.binary(max_size=9)), max_size=5
    )
)
@example(frames=[("upload", {}, b"12345678"), ("load", {}, b"")])
@example(
    frames=[("upload", {"offset": 0}, b"1234"), ("upload", {"offset": 4}, b"1234"), ("upload", {"offset": 8}, b"1")]
)
@example(frames=[("load", EIGHT_BYTES, b""), ("upload", EIGHT_BYTES, b"12345678"), ("pass_on", EIGHT_BYTES, b"")])
@example(frames=[("upload", {"size": 0}, b""), ("upload", {"size": 1 << 62}, b"1"), ("load", {"sha256": "x"}, b"")])
def test_hostile_uploads_leave_no_file_and_change_no_other_connection(
    frames: list[tuple[str, dict[str, Any], bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They know the secret, and their connection may load weights."""
    host = tmp_path_factory.mktemp("host")

    async def go() -> None:
        uploads = store(host)
        serving = EngineServer(
            FakeEngine(lambda _: (7, 8)), IDENTITY, vocabulary=VOCABULARY, largest=LARGEST, uploads=uploads
        )
        good = RemoteEngine(*await pair(serving.connection), name="good", deadline=PATIENCE)
        await good.hello(PATIENCE)
        reader, writer = await pair(partial(serving.connection, secret=SECRET))
        writer.write(HELLO + encode({**GOOD, "id": 1, "do": "load"}))
        for i, (verb, fields, part) in enumerate(frames):
            writer.write(encode({**GOOD, **fields, "id": i + 2, "do": verb}, part))
        writer.write_eof()
        assert (await good.sample(request())).tokens == (7, 8)
        while (reply := await read_message(reader, 1 << 20)) is not None:
            assert set(reply) == {"id", "reply"} or set(reply) == {"id", "error"}
        writer.close()
        while [*uploads.directory.iterdir()]:
            await asyncio.sleep(0.001)
        assert [*host.iterdir()] == [uploads.directory] and (await good.score((1, 2), (3,))) == (-2.0,)

    run(go())
