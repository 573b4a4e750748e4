"""A fleet: equal answers, lost, silent and lying replicas, and the queue."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

from groupwise.core import EngineLost, LogprobMismatch, Storage, WorkerLost
from groupwise.data import Generation, GenerationRequest
from groupwise.engines import Fleet, NativeEngine, RemoteEngine, WeightsFilesDirectory, WeightsProbe
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote import fleet as fleets
from groupwise.engines.remote.heartbeat import PACE, HeartbeatMonitor, UnansweredRequest
from groupwise.engines.remote.weights_probe import ProbeScores
from groupwise.engines.remote.wire import PROTOCOL, encode, read_message
from groupwise.models import Decoder
from tests.engines.lines import IDENTITY, blank, changed, engine, pair, remote, run, server, weights
from tests.processes import PATIENCE
from tests.rollout.fakes import FakeEngine, decoder, generate, request, without_end_token

REQUESTS = [request(i, stream=(j,)) for i in range(4) for j in range(4)]


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)


def fleet(
    path: Path,
    model: Decoder,
    start: Callable[[int], Awaitable[RemoteEngine]],
    *,
    count: int = 2,
    max_num_seqs: int = 64,
    restarts: int = 3,
    addresses: Sequence[str] = (),
) -> Fleet:
    probe, exchange = WeightsProbe(model, without_end_token(), 1e-3), WeightsFilesDirectory(path)
    return Fleet(
        start, count, exchange=exchange, probe=probe, max_num_seqs=max_num_seqs, restarts=restarts, addresses=addresses
    )


async def honest(number: int) -> RemoteEngine:
    return await remote(blank(), name=f"replica {number}")


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"in_memory": True}, "in shared memory"),
        ({}, "in a file"),
        ({"addresses": ["run:1/one.sock"]}, "in a file"),
        ({"addresses": ["one.sock", "[::1]:7000"]}, "in a file, to other hosts by TLS"),
        ({"on_gpu": True}, "from the learner's GPU"),
        (
            {"on_gpu": True, "addresses": ["b:7000"]},
            "from the learner's GPU, to other hosts by NCCL, which encrypts nothing",
        ),
    ],
)
def test_a_fleet_says_by_what_way_its_engines_load_weights(settings: dict[str, Any], way: str, tmp_path: Path) -> None:
    probe = WeightsProbe(decoder(), without_end_token(), 1e-3)
    exchange = WeightsFilesDirectory(tmp_path)
    found = Fleet(honest, 3, exchange=exchange, probe=probe, max_num_seqs=8, restarts=0, **settings)
    assert found.weights_way == f"engines load weights {way}"


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

    async def start(number: int) -> RemoteEngine:
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
    """The faulty replica is alone; a new one of its kind loads the current weights first, and is admitted."""
    model = decoder()
    errors: list[Any] = []

    async def go() -> None:
        group = fleet(tmp_path, model, lambda _: remote(blank(kind)), count=1)
        await group.load(0, weights(model))
        place = group._slots[0]
        keep = fleets.Fleet._fill

        async def recorded(self: Fleet, kept: Any) -> None:
            await keep(self, kept)
            errors.append(kept.error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleets.Fleet, "_fill", recorded)
            first = place.replica
            await group.load(1, changed(model))
            assert place.replica is not first and place.version == 1
        errors.append(place.last_error)

    run(go())
    assert isinstance(errors[-1], LogprobMismatch) and expected in errors[-1].what


@pytest.mark.parametrize(
    ("noise", "change", "has_new", "admitted"),
    [(0.0, 1e-6, True, True), (0.0, 1e-6, False, False), (8e-4, 1e-5, True, True), (1e-4, 5e-4, False, False)],
)
def test_the_rounding_of_other_kernels_is_not_taken_for_the_weights_before(
    noise: float, change: float, has_new: bool, admitted: bool
) -> None:
    """The scores of the engine lie by the noise beside those of its weights, on the side of the weights before."""
    probe = WeightsProbe(decoder(), without_end_token(), 1e-3)
    before = tuple(-1.0 - 0.1 * i for i in range(len(probe.answer)))
    new = tuple(x + change for x in before)

    class Engine:
        name, version = "engine", 2

        async def score(self, *_: Any, pictures: Any) -> tuple[float, ...]:
            return tuple(x - noise for x in (new if has_new else before))

    checked = probe.check(Engine(), ProbeScores(new, before))  # type: ignore[arg-type]
    if admitted:
        run(checked)
    else:
        with pytest.raises(LogprobMismatch, match="the weights of the version before"):
            run(checked)


def test_a_fleet_whose_engines_all_have_wrong_weights_ends_with_mismatch(tmp_path: Path) -> None:
    class Never(NativeEngine):
        async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
            self.version = version

    async def go() -> None:
        model = decoder()
        await fleet(tmp_path, model, lambda _: remote(blank(Never)), restarts=1).load(0, weights(model))

    with pytest.raises(LogprobMismatch, match="no engine is left"):
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
        reply = {
            "protocol": PROTOCOL,
            "version": 0,
            "steps": 0,
            "model_hash": "",
            "tokenizer_hash": "",
            "dtype": "",
            "seed": 0,
        }
        writer.write(encode({"id": 0, "reply": reply}))
        while await read_message(reader, 1 << 20) is not None:
            pass

    async def go() -> None:
        silent = RemoteEngine(*await pair(mute), name="mute", deadline=0.2)
        await silent.hello(PATIENCE)
        with pytest.raises(EngineLost, match="mute is lost") as caught:
            await silent.sample(request())
        assert "sent nothing for 0.2 s, while 1 requests waited: sample" in caught.value.evidence
        patient = await remote(Slow(blank=False), deadline=0.4)
        assert (await patient.sample(request())).tokens == (7, 8)

    run(go())


class Slow(FakeEngine):
    """Takes a second for an answer; unless it is `blank`, it counts steps meanwhile."""

    steps = 0

    def __init__(self, *, blank: bool) -> None:
        super().__init__(self.work)
        self._blank = blank

    async def work(self, _: GenerationRequest) -> tuple[int, ...]:
        for _ in range(100):
            await asyncio.sleep(0.01)
            self.steps += not self._blank
        return 7, 8


def test_an_engine_that_replies_and_does_no_work_is_lost() -> None:
    async def go() -> None:
        idle = await remote(Slow(blank=True), name="idle", deadline=0.2)
        with pytest.raises(EngineLost, match="idle is lost") as caught:
            await idle.sample(request())
        assert caught.value.evidence == "it replies, but did no work for 0.2 s, while 1 requests waited: sample"

    run(go())


def test_a_load_has_more_time_the_larger_its_file_is() -> None:
    heartbeat = HeartbeatMonitor(4.0)

    def beats(*owed: UnansweredRequest) -> int:
        """How many beats an engine has that replies to `hello` and does nothing else."""
        heartbeat.beat([])
        for count in range(1, 100):
            heartbeat.heard = True
            if heartbeat.beat(owed):
                return count
        return 100

    assert (
        beats(UnansweredRequest("sample")),
        beats(UnansweredRequest("sample"), UnansweredRequest("load", 40e6 / PACE)),
    ) == (5, 7)


@pytest.mark.parametrize("verb, is_lost", [("sample", False), ("upload", True)])
def test_an_engine_that_samples_while_its_disk_hangs_receives_nothing(verb: str, is_lost: bool) -> None:
    """Its steps are work for those who wait for an answer of the model, and not for those who send it weights."""
    heartbeat, lost = HeartbeatMonitor(4.0), ""
    for _ in range(6):
        heartbeat.heard, heartbeat.steps = True, heartbeat.steps + 1
        lost = lost or heartbeat.beat([UnansweredRequest(verb)])
    assert lost == ("it replies, but did no work for 4 s, while 1 requests waited: upload" if is_lost else "")


class Stuck(NativeEngine):
    """Ends no request, or no load of new weights, of the first replica that is started."""

    stuck_in = ""

    async def sample(self, request: GenerationRequest) -> Generation:
        if self.stuck_in == "sample":
            await asyncio.sleep(1000)
        return await super().sample(request)

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if self.stuck_in == "load" and version == 1:
            await asyncio.sleep(1000)
        await super().load(version, weights)


@pytest.mark.parametrize("verb", ["sample", "load"])
def test_requests_of_an_engine_that_never_ends_one_are_asked_elsewhere(tmp_path: Path, verb: str) -> None:
    model, lines, starts = decoder(), [], []

    async def start(number: int) -> RemoteEngine:
        twin = blank(Stuck)
        twin.stuck_in = "" if starts else verb
        starts.append(number)
        return await remote(twin, name=f"replica {number}", deadline=0.4 if twin.stuck_in else PATIENCE)

    async def go() -> list[Generation]:
        group = fleet(tmp_path, model, start)
        group.notify = lines.append
        await group.load(0, weights(model))
        while len(group.replicas) < 2:
            await asyncio.sleep(0.001)
        await group.load(1, changed(model))
        answers = list(await asyncio.gather(*map(group.sample, REQUESTS)))
        assert group.figures()["engine/restarts"] == 1 and group.figures()["engine/restarts"] == 0
        return answers

    found = run(go())
    native = engine(model)
    native.version = 1
    assert found == generate(native, REQUESTS) and len(starts) == 3
    (line,) = lines
    assert line.startswith(f"replica {starts[0]} is lost: it replies, but did no work for") and f": {verb}" in line
    assert line.endswith("; started again (1 of 3)")


class Raises(NativeEngine):
    """Fails in a request of draw 3, `times` times over all its engines."""

    times: ClassVar[list[int]] = [0]

    async def sample(self, request: GenerationRequest) -> Generation:
        if request.draw_id == 3 and self.times[0]:
            self.times[0] -= 1
            raise RuntimeError("out of memory")
        return await super().sample(request)


def test_a_request_in_which_an_engine_fails_is_asked_elsewhere(tmp_path: Path) -> None:
    model, lines = decoder(), []

    async def go() -> list[Generation]:
        Raises.times[:] = [1]
        group = fleet(tmp_path, model, lambda number: remote(blank(Raises), name=f"replica {number}"))
        group.notify = lines.append
        await group.load(0, weights(model))
        return list(await asyncio.gather(*map(group.sample, REQUESTS)))

    assert run(go()) == generate(engine(model), REQUESTS)
    assert len(lines) == 1 and "is lost: it failed in a request: the engine failed" in lines[0]


def test_a_request_in_which_every_engine_fails_ends_with_the_error_and_the_engines_name(tmp_path: Path) -> None:
    async def go() -> None:
        model = decoder()
        Raises.times[:] = [1000]
        group = fleet(tmp_path, model, lambda number: remote(blank(Raises), name=f"replica {number}"), restarts=20)
        await group.load(0, weights(model))
        await group.sample(request(3))

    with pytest.raises(WorkerLost, match=r"^the engine replica \d failed") as caught:
        run(go())
    assert "RuntimeError: out of memory" in caught.value.evidence and Raises.times == [998]


@pytest.mark.parametrize("verb", ["hello", "score", "sample", "load"])
def test_a_malformed_reply_is_the_loss_of_its_engine(verb: str, tmp_path: Path) -> None:
    async def go() -> None:
        serving = server(blank())
        answer = serving._verbs[verb]

        async def empty(*arguments: Any) -> dict[str, Any]:
            await answer(*arguments)
            return {"none": 0}

        serving._verbs[verb] = empty
        if verb == "hello":
            serving._hello = empty  # type: ignore[method-assign]
        client = RemoteEngine(*await pair(serving.connection), name="odd", deadline=PATIENCE)
        await client.hello(PATIENCE)
        await client.load(0, weights(decoder()))
        await client.score((1, 2), (3, 4))
        await client.sample(request())

    with pytest.raises(EngineLost, match="odd is lost") as caught:
        run(go())
    assert f"its reply to {verb} is malformed" in caught.value.evidence


def test_the_cause_of_a_fleets_end_keeps_its_type_and_names_the_addresses(tmp_path: Path) -> None:
    """One engine at an address was never reached; the other one cannot read the weights."""

    async def start(number: int) -> RemoteEngine:
        raise EngineLost("no engine listens on host:7", fix="check the address") if number else Storage("damaged")

    async def go() -> None:
        model = decoder()
        group = fleet(tmp_path, model, start, restarts=1, addresses=["host:6", "host:7"])
        await group.load(0, weights(model))

    with pytest.raises(
        Storage, match="the engine at host:6 was tried 2 times; the engine at host:7 was tried"
    ) as caught:
        run(go())
    assert "damaged" in caught.value.evidence


def test_a_fleet_that_cannot_start_ends_with_the_cause(tmp_path: Path) -> None:
    starts: list[int] = []

    async def start(number: int) -> RemoteEngine:
        starts.append(number)
        raise EngineLost("replica did not start", evidence="its process ended\nlast line")

    async def go() -> None:
        model = decoder()
        await fleet(tmp_path, model, start, restarts=2).load(0, weights(model))

    with pytest.raises(WorkerLost, match="started again 2 times") as caught:
        run(go())
    assert "last line" in caught.value.evidence and sorted(starts) == [0, 0, 0, 1, 1, 1]


def test_no_more_than_max_num_seqs_requests_are_in_a_replica_and_the_others_wait_in_order(tmp_path: Path) -> None:
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
        group = fleet(tmp_path, model, lambda _: remote(blank(Watched)), count=1, max_num_seqs=2)
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
