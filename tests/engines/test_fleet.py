"""A fleet: equal answers, lost, silent and lying replicas, and the queue."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from torch import Tensor

from groupwise.data import EngineLost, Generation, GenerationRequest, Mismatch, WorkerLost
from groupwise.engines import Exchange, Fleet, Probe, Remote
from groupwise.engines import fleet as fleets
from groupwise.engines.wire import PROTOCOL, encode, read_message
from groupwise.models import Decoder
from groupwise.rollout import NativeEngine
from tests.engines.lines import IDENTITY, blank, changed, engine, pair, remote, weights
from tests.rollout.fakes import FakeEngine, decoder, generate, request, without_end_token

T = TypeVar("T")
REQUESTS = [request(i, stream=(j,)) for i in range(4) for j in range(4)]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "PAUSE", 0.0)


def run(call: Awaitable[T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(60):
            return await call

    return asyncio.run(limited())


def fleet(
    path: Path, model: Decoder, start: Callable[[int], Awaitable[Remote]], *, count: int = 2, rows: int = 64,
    restarts: int = 3,
) -> Fleet:  # fmt: skip
    probe = Probe(model, without_end_token(), 1e-3)
    return Fleet(start, count, exchange=Exchange(path), probe=probe, rows=rows, restarts=restarts)


async def honest(number: int) -> Remote:
    return await remote(blank(), name=f"replica {number}")


def test_a_fleet_gives_the_answers_of_one_engine(tmp_path: Path) -> None:
    model = decoder()
    asked: list[NativeEngine] = []

    class Counted(NativeEngine):
        async def sample(self, request: GenerationRequest) -> Generation:
            asked.append(self)
            return await super().sample(request)

    async def go() -> list[Generation]:
        group = fleet(tmp_path, model, lambda number: remote(blank(Counted), name=str(number)))
        with pytest.raises(EngineLost, match="no weights yet"):
            await group.sample(REQUESTS[0])
        await group.load(0, weights(model))
        while len(group.replicas) < 2:
            await asyncio.sleep(0.001)
        group.prefill([("", REQUESTS[0].context)])
        answers = list(await asyncio.gather(*map(group.sample, REQUESTS)))
        assert await group.score((1, 2), (3, 4)) == await engine(model).score((1, 2), (3, 4)) and group.version == 0
        return answers

    assert run(go()) == generate(engine(model), REQUESTS)
    assert len(set(asked)) == 2


def test_requests_of_a_lost_replica_are_asked_again_and_its_successor_has_the_weights_of_now(tmp_path: Path) -> None:
    model = decoder()
    starts: list[int] = []

    async def start(number: int) -> Remote:
        starts.append(number)
        return await honest(number)

    async def go() -> list[Generation]:
        group = fleet(tmp_path, model, start)
        await group.load(0, weights(model))
        await group.load(1, changed(model))
        answers = asyncio.gather(*map(group.sample, REQUESTS))
        await asyncio.sleep(0.02)  # in flight
        group.replicas[0].fail("killed by the test")
        first = list(await answers)
        while len(starts) < 3 or any(replica.version != 1 for replica in group.replicas):
            await asyncio.sleep(0.001)
        assert [path.name for path in tmp_path.glob("*/weights*")] == ["weights-000001.safetensors"]
        return first

    found = run(go())
    native = engine(model)
    native.version = 1
    assert found == generate(native, REQUESTS)


class Ignores(NativeEngine):
    """Reports new versions, and keeps the weights of its first load."""

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if self.version < 0:
            await super().load(version, weights)
        self.version = version


class LoadsHalf(NativeEngine):
    """Copies every second tensor."""

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if self.version >= 0:
            current = self._decoder.state_dict()
            weights = {name: x if i % 2 else current[name] for i, (name, x) in enumerate(weights.items())}
        await super().load(version, weights)


class LiesAboutVersion(NativeEngine):
    """Stamps its tokens with a version that it does not have."""

    async def sample(self, request: GenerationRequest) -> Generation:
        found = await super().sample(request)
        return Generation(**{**{n: getattr(found, n) for n in ("tokens", "logp", "finish")},
                             "versions": (9,) * len(found.tokens)})  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Ignores, "the weights of the version before"), (LoadsHalf, "neither the new nor the old weights")],
)
def test_the_probe_tells_new_old_and_half_loaded_weights_apart(
    tmp_path: Path, kind: type[NativeEngine], expected: str
) -> None:
    """The faulty replica is alone; a new one of its kind loads the weights of now first, and is admitted."""
    model = decoder()
    errors: list[Any] = []

    async def go() -> None:
        group = fleet(tmp_path, model, lambda _: remote(blank(kind)), count=1)
        await group.load(0, weights(model))
        place = group._places[0]
        keep = fleets.Fleet._fill

        async def recorded(self: Fleet, kept: Any) -> None:
            await keep(self, kept)
            errors.append(kept.error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleets.Fleet, "_fill", recorded)
            first = place.replica
            await group.load(1, changed(model))
            assert place.replica is not first and place.version == 1
        errors.append(place.error)

    run(go())
    assert isinstance(errors[-1], Mismatch) and expected in errors[-1].what


def test_a_fleet_whose_engines_all_have_wrong_weights_ends_with_mismatch(tmp_path: Path) -> None:
    class Never(NativeEngine):
        async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
            self.version = version

    async def go() -> None:
        model = decoder()
        await fleet(tmp_path, model, lambda _: remote(blank(Never)), restarts=1).load(0, weights(model))

    with pytest.raises(Mismatch, match="no engine is left"):
        run(go())


def test_tokens_of_a_version_that_was_not_loaded_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        model = decoder()
        group = fleet(tmp_path, model, lambda _: remote(blank(LiesAboutVersion)), restarts=1)
        await group.load(0, weights(model))
        await group.sample(request())

    with pytest.raises(WorkerLost, match="no engine is left") as caught:
        run(go())
    assert "versions [9], not 0" in caught.value.evidence


def test_a_silent_engine_is_lost_and_a_slow_one_is_not() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers `hello` once, and reads on without a word, as a stopped process does."""
        await read_message(reader, 1 << 20)
        reply = {"protocol": PROTOCOL, "version": 0, "model": "", "tokenizer": "", "dtype": "", "seed": 0}
        writer.write(encode({"id": 0, "reply": reply}))
        while await read_message(reader, 1 << 20) is not None:
            pass

    async def slow(_: GenerationRequest) -> tuple[int, ...]:
        await asyncio.sleep(1.0)
        return 7, 8

    async def go() -> None:
        silent = Remote(*await pair(mute), name="mute", deadline=0.2)
        await silent.hello(20.0)
        with pytest.raises(EngineLost, match="mute is lost") as caught:
            await silent.sample(request())
        assert "sent nothing for 0.2 s" in caught.value.evidence
        patient = await remote(FakeEngine(slow), deadline=0.4)
        assert (await patient.sample(request())).tokens == (7, 8)

    run(go())


def test_a_fleet_that_cannot_start_ends_with_the_cause(tmp_path: Path) -> None:
    starts: list[int] = []

    async def start(number: int) -> Remote:
        starts.append(number)
        raise EngineLost("replica did not start", evidence="its process ended\nlast line")

    async def go() -> None:
        model = decoder()
        await fleet(tmp_path, model, start, restarts=2).load(0, weights(model))

    with pytest.raises(WorkerLost, match="started again 2 times") as caught:
        run(go())
    assert "last line" in caught.value.evidence and sorted(starts) == [0, 0, 0, 1, 1, 1]


def test_no_more_than_rows_requests_are_in_a_replica_and_the_others_wait_in_order(tmp_path: Path) -> None:
    model, most, order = decoder(), [0], []

    class Watched(NativeEngine):
        inside = 0

        async def sample(self, request: GenerationRequest) -> Generation:
            self.inside += 1
            most[0] = max(most[0], self.inside)
            order.append(request.stream[0])
            try:
                return await super().sample(request)
            finally:
                self.inside -= 1

    async def go() -> None:
        group = fleet(tmp_path, model, lambda _: remote(blank(Watched)), count=1, rows=2)
        await group.load(0, weights(model))
        calls = [asyncio.create_task(group.sample(request(stream=(i,)))) for i in range(8)]
        await asyncio.sleep(0)
        calls[5].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await group.sample(request())).tokens

    run(go())
    assert most == [2] and order == [0, 1, 2, 3, 4, 6, 7, 0]


def test_the_identity_of_an_engine_names_what_differs() -> None:
    found = IDENTITY.of(decoder(), without_end_token(), seed=1)
    assert found == IDENTITY.of(decoder(), without_end_token(), seed=1)
    assert found != IDENTITY.of(decoder(layers=1), without_end_token(), seed=1)
