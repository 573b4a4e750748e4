"""The wire: its verbs, bounds, an unknown protocol, closed connections and garbage."""

import asyncio
import json
import math
import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.core import EngineLost, Storage, Usage, WorkerLost
from groupwise.data import Generation, GenerationRequest
from groupwise.data.rollout_json import to_json
from groupwise.engines import EngineIdentity, RemoteEngine, read_weights, write_weights
from groupwise.engines.remote.server import bound
from groupwise.engines.remote.wire import (
    LARGEST_REQUEST,
    MOST_PARTS,
    PROTOCOL,
    encode,
    error_json,
    error_of,
    generation_request,
    read_message,
)
from tests.engines.lines import HELLO, IDENTITY, LARGEST, blank, pair, remote, run, server, weights
from tests.processes import PATIENCE
from tests.rollout.fakes import VOCABULARY, FakeEngine, decoder, engine, request, sampling


def test_a_remote_engine_gives_the_bits_of_the_engine_behind_it(tmp_path: Path) -> None:
    model, requests = decoder(), [request(i, sampling=sampling(stop=("7",)), num_top_logprobs=2) for i in range(6)]

    async def go(native: Any) -> list[Any]:
        await native.load(4, weights(model))
        native.prefill([("", requests[0].context)])
        answers = await asyncio.gather(*map(native.sample, requests))
        return [*answers, await native.score((1, 2), (3, 4), temperature=0.5), native.version]

    async def over_wire() -> list[Any]:
        client = await remote(blank())
        with pytest.raises(EngineLost, match="no complete weights"):
            await client.sample(requests[0])
        return await go(client)

    assert run(over_wire()) == run(go(engine(model)))


def test_errors_keep_their_type_and_an_unknown_one_ends_no_other_request() -> None:
    def answer(asked: GenerationRequest) -> tuple[int, ...]:
        errors: dict[int, Exception] = {1: ValueError("one"), 2: Usage("two", evidence="e", fix="f"), 3: KeyError("k")}
        if asked.draw_id in errors:
            raise errors[asked.draw_id]
        return 7, 8

    async def go() -> None:
        client = await remote(FakeEngine(answer))
        with pytest.raises(ValueError, match="one"):
            await client.sample(request(1))
        with pytest.raises(Usage, match="two") as caught:
            await client.sample(request(2))
        assert (caught.value.evidence, caught.value.fix) == ("e", "f")
        with pytest.raises(WorkerLost, match="the engine failed") as failed:
            await client.sample(request(3))
        assert not isinstance(failed.value, EngineLost) and "KeyError" in failed.value.evidence
        assert (await client.sample(request(4))).tokens == (7, 8)

    run(go())
    assert isinstance(error_of(None), WorkerLost) and type(error_of(error_json(Storage("s")))) is Storage


def test_a_cancelled_call_and_a_closed_connection_cancel_the_requests_in_the_engine() -> None:
    cancelled: list[int] = []
    started = asyncio.Event()

    async def endless(asked: GenerationRequest) -> tuple[int, ...]:
        started.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(asked.draw_id)
            raise
        return ()

    async def until(count: int) -> None:
        while len(cancelled) < count:
            await asyncio.sleep(0.001)

    async def go() -> None:
        client = await remote(FakeEngine(endless))
        one = asyncio.create_task(client.sample(request(1)))
        await started.wait()
        one.cancel()
        await until(1)
        two = asyncio.create_task(client.sample(request(2)))
        started.clear()
        await started.wait()
        client.close()
        await until(2)
        with pytest.raises(EngineLost, match="is lost"):
            await two

    run(go())
    assert cancelled == [1, 2]


def test_an_unknown_protocol_is_refused_by_its_number() -> None:
    async def go(first: dict[str, Any]) -> dict[str, Any]:
        reader, writer = await pair(server(FakeEngine(lambda _: (7,))).connection)
        writer.write(encode(first))
        reply = await read_message(reader, 1 << 20)
        assert reply is not None and await read_message(reader, 1 << 20) is None  # and the connection ends
        return reply["error"]

    error = run(go({"id": 0, "do": "hello", "protocol": PROTOCOL + 1}))
    assert error["kind"] == "Usage" and f"protocol {PROTOCOL}" in error["what"] and f"{PROTOCOL + 1}" in error["what"]
    assert "protocol None" in run(go({"id": 0, "do": "sample"}))["what"]


def test_only_regular_files_as_large_as_the_weights_are_read(tmp_path: Path) -> None:
    """A device would be hashed for ever, in a thread that also keeps the process from ending."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST + 1)
    files = ["/dev/zero", tmp_path / "pipe", tmp_path / "large", tmp_path, tmp_path / "none"]
    reasons = ["not a regular file", "not a regular file", "more than", "not a regular file", "No such file"]

    async def go() -> None:
        client = await remote(blank())
        for file, reason in zip(files, reasons):
            with pytest.raises(Storage, match="cannot be read") as caught:
                await client._call("load", version=1, sha256="0" * 64, file=str(file))
            assert reason in caught.value.evidence
        await client.load(4, weights(decoder()))
        for temperature in (1e-300, 1e-7, 0, -1.0):
            with pytest.raises(ValueError, match="a number of at least 1e-06"):
                await client.score((1, 2), (3, 4), temperature=temperature)
        assert all(map(math.isfinite, await client.score((1, 2), (3, 4), temperature=1e-6)))

    run(go())


GOOD = {"id": 1, "do": "sample", "request": to_json(request())}
BAD_REQUESTS = [
    {"context": [1, -2]},
    {"context": [1.5]},
    {"context": "12"},
    {"context": 7},
    {"limit": 0},
    {"limit": "3"},
    {"draw_id": -1},
    {"draw_id": 1 << 64},
    {"stream": [-1]},
    {"stream": [None]},
    {"already_generated_count": -1},
    {"num_top_logprobs": True},
    {"random_purpose": 1e9},
    {"sampling": {}},
    {"sampling": None},
    {"content_hash": 5},
    {"previous_actions": [5]},
    {"extra": 1},
    {"sampling": {**to_json(request())["sampling"], "stop": ["x"] * 65}},
    {"sampling": {**to_json(request())["sampling"], "stop": [5]}},
    {"sampling": {**to_json(request())["sampling"], "temperature": -1}},
    {"sampling": {**to_json(request())["sampling"], "temperature": 1e-300}},
]


LEGAL = {
    "content_hash": ["x"],
    "denoising_steps": [None],
    "previous_actions": [[]],
    "stream": [[]],
    "context": [[]],
    "pictures": [[]],
}
"""By field: the values below that a request may have."""


@pytest.mark.parametrize("name", [f.name for f in fields(GenerationRequest)])
def test_every_field_of_a_request_is_checked(name: str) -> None:
    for value in ("x", -1, 1.5, None, True, 1 << 70, [], {}, [None], ["!"], [1 << 70], {"a": 1}):
        data = {**to_json(request()), name: value}
        if value in LEGAL.get(name, ()):
            assert generation_request(json.loads(json.dumps(data)))
        else:
            with pytest.raises(ValueError):
                generation_request(data)


def test_a_bad_request_is_an_error_to_its_sender_and_reaches_no_engine() -> None:
    async def go() -> None:
        fake = FakeEngine(lambda _: (7,))
        reader, writer = await pair(server(fake).connection)
        writer.write(HELLO)
        assert await read_message(reader, 1 << 20)
        for i, change in enumerate(BAD_REQUESTS):
            bad = {**GOOD, "id": i, "request": {**GOOD["request"], **change}}  # type: ignore[dict-item]
            writer.write(encode(bad))
            reply = await read_message(reader, 1 << 20)
            assert reply and reply["id"] == i and reply["error"]["kind"] in ("ValueError", "Usage"), (change, reply)
        for score in ({"tokens": [VOCABULARY]}, {"context": [-1]}, {"temperature": 0}, {"temperature": float("nan")}):
            writer.write(encode({"id": 1, "do": "score", "context": [1], "tokens": [2], "temperature": 1.0, **score}))
            reply = await read_message(reader, 1 << 20)
            assert reply and reply["error"]["kind"] == "ValueError", score
        for load in ({"version": -1}, {"file": "a\0b"}, {"sha256": 3}, {}):
            writer.write(encode({"id": 1, "do": "load", "version": 1, "file": "/nowhere", "sha256": "0", **load}))
            reply = await read_message(reader, 1 << 20)
            assert reply and reply["error"]["kind"] == ("ValueError" if load else "Storage"), load
        assert fake.calls == []

    run(go())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
VERB = st.sampled_from(["hello", "sample", "score", "upload", "pass_on", "load", "prefill", "cancel", "quit"])
FIELD = st.sampled_from(
    ["request", "context", "tokens", "temperature", "version", "file", "sha256", "contexts", "of", "bytes", "part",
     "size", "offset", "trainer", "address", "host", "deadline"]
)  # fmt: skip
MESSAGE = st.builds(
    lambda number, verb, fields: {"id": number, "do": verb, **fields},
    st.integers(-1, 3), VERB, st.dictionaries(FIELD, JSON, max_size=4),
)  # fmt: skip
FRAME = (
    MESSAGE.map(encode) | JSON.map(lambda value: b"\0\0\0\x09" + json.dumps(value).encode()) | st.binary(max_size=40)
)


@settings(max_examples=25)
@given(frames=st.lists(FRAME, max_size=4), greeted=st.booleans())
@example(frames=[b"\xff\xff\xff\xff"], greeted=True)
@example(frames=[encode({"id": 1, "do": "load", "part": "x"}, b"part"), encode({"bytes": 1 << 40})], greeted=True)
@example(frames=[(LARGEST_REQUEST + 1).to_bytes(4, "big")], greeted=False)
@example(frames=[(200_000).to_bytes(4, "big") + b"[" * 200_000], greeted=True)
def test_garbage_on_one_connection_changes_no_other(frames: list[bytes], greeted: bool) -> None:
    async def go() -> None:
        serving = server(FakeEngine(lambda _: (7, 8)))
        good = RemoteEngine(*await pair(serving.connection), name="good", deadline=PATIENCE)
        await good.hello(PATIENCE)
        reader, writer = await pair(serving.connection)
        writer.write((HELLO if greeted else b"") + b"".join(frames))
        writer.write_eof()
        assert (await good.sample(request())).tokens == (7, 8)
        while (reply := await read_message(reader, 1 << 20)) is not None:
            assert set(reply) == {"id", "reply"} or set(reply) == {"id", "error"}
        writer.close()
        assert (await good.score((1, 2), (3,))) == (-2.0,)

    run(go())


def test_more_unanswered_parts_than_the_window_end_their_connection() -> None:
    """Else one client could fill the engine's memory, whatever the verb."""

    async def endless(_: GenerationRequest) -> tuple[int, ...]:
        await asyncio.sleep(1000)
        return ()

    async def go() -> dict[str, Any]:
        reader, writer = await pair(server(FakeEngine(endless)).connection)
        writer.write(HELLO)
        assert await read_message(reader, 1 << 20)
        for i in range(MOST_PARTS + 1):
            writer.write(encode({**GOOD, "id": i}, b"part"))
        reply = await read_message(reader, 1 << 20)
        assert reply is not None and await read_message(reader, 1 << 20) is None
        return reply

    reply = run(go())
    assert reply["id"] is None and f"more than {MOST_PARTS} parts" in reply["error"]["what"]


def test_only_one_connection_loads_weights(tmp_path: Path) -> None:
    model = decoder()

    async def go() -> None:
        serving = server(blank())
        one, two = [RemoteEngine(*await pair(serving.connection), name=n, deadline=PATIENCE) for n in ("one", "two")]
        for client in (one, two):
            await client.hello(PATIENCE)
        await one.load(1, weights(model))
        with pytest.raises(Usage, match="another connection loads"):
            await two.load(1, weights(model))
        one.close()
        while serving._loader is not None:  # until the engine has seen the end
            await asyncio.sleep(0.001)
        await two.load(2, weights(model))
        assert two.version == 2

    run(go())


def test_a_damaged_weights_file_is_not_loaded(tmp_path: Path) -> None:
    model = decoder()
    file = write_weights(tmp_path, 3, weights(model))
    assert set(read_weights(file.path, file.sha256)) == set(weights(model)) and [*tmp_path.iterdir()] == [file.path]
    file.path.write_bytes(file.path.read_bytes()[:-1] + b"\1")

    async def go() -> int:
        client = await remote(blank())
        with pytest.raises(Storage, match="not the file that was written"):
            await client.fetch(file)
        with pytest.raises(EngineLost, match="no complete weights"):
            await client.sample(request())
        return client.version

    assert run(go()) == -1
    with pytest.raises(Storage, match="cannot be read"):
        read_weights(tmp_path / "none", file.sha256)


def test_a_socket_is_the_users_alone_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bound(path).close()  # its file stays
    with bound(path) as listener:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        listener.listen()
        with pytest.raises(Usage, match="cannot listen"):
            bound(path)
    (tmp_path / "text").write_text("kept")
    with pytest.raises(Usage, match="cannot listen"):
        bound(tmp_path / "text")
    assert (tmp_path / "text").read_text() == "kept"


def test_a_client_by_address_checks_the_engine(tmp_path: Path) -> None:
    async def go() -> Generation:
        listening = asyncio.Event()
        serving = asyncio.create_task(server(FakeEngine(lambda _: (7, 8))).listen(tmp_path / "s", listening.set))
        await listening.wait()
        client = await RemoteEngine.connect(tmp_path / "s", expected=IDENTITY)
        other = EngineIdentity(model_hash="m", tokenizer_hash="t", dtype="float64", seed=12)
        with pytest.raises(Usage, match="another engine") as caught:
            await RemoteEngine.connect(tmp_path / "s", expected=other)
        assert caught.value.evidence == "seed 11, expected 12"
        answer = await client.sample(request())
        client.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return answer

    assert run(go()).tokens == (7, 8) and not (tmp_path / "s").exists()
    with pytest.raises(EngineLost, match="no engine listens"):
        run(RemoteEngine.connect(tmp_path / "s"))
