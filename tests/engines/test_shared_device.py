"""Engines on the learner's device: the order of calls, the bytes that they hold, and lost replicas."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.__main__ import main
from groupwise.checks.check_machine import check_place
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.resolve_devices import resolved
from groupwise.core import EngineLost, Usage
from groupwise.data import SharesDevice
from groupwise.engines import (
    EngineServer,
    RemoteEngine,
    Served,
    SharedDeviceFleet,
    SleepingEngine,
    Vllm,
    WeightsFilesDirectory,
    WeightsProbe,
)
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote import served_settings as fleets_of
from groupwise.engines.remote.replica import ReplicaProgram
from groupwise.learner import Learner
from groupwise.models import Decoder, DecoderShape, find_model, read_model, read_shape, read_tokenizer
from groupwise.planning.process_memory import run_memory
from tests.engines.lines import IDENTITY, LARGEST, blank, changed, engine, pair, remote, weights
from tests.engines.test_fleet import REQUESTS, run
from tests.processes import PATIENCE
from tests.rollout.fakes import decoder, generate, without_end_token

SAME = '{ kind = "Served", replicas = 1, placement = "colocated" }'


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)


class Counting(SleepingEngine):
    """Records each call with the bytes of its weights and caches after it."""

    calls: list[tuple[str, int]]

    @property
    def held(self) -> int:
        """Bytes of the weights and of cached keys and values."""
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in self._decoder.state_dict().values()}
        cached = [x for block in self._batch.sequences.cache.blocks for x in block]
        return sum(s.nbytes() for s in storages.values()) + sum(x.nbytes for x in cached)

    async def sample(self, request: Any) -> Any:
        answer = await super().sample(request)
        self.calls.append(("sample", self.held))
        return answer

    async def score(self, *arguments: Any, **settings: Any) -> Any:
        self.calls.append(("probe", self.held))
        return await super().score(*arguments, **settings)

    async def sleep(self) -> None:
        await super().sleep()
        self.calls.append(("sleep", self.held))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        await super().load(version, weights)
        if version >= 0:
            self.calls.append(("load", self.held))


def test_a_run_samples_sleeps_learns_loads_and_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine holds nothing while the learner works, and the trained model has the bytes of a native run."""
    engines: list[Counting] = []
    calls: list[tuple[str, int]] = []

    async def start(program: ReplicaProgram, number: int, deadline: float) -> RemoteEngine:
        shape = read_shape(program.settings.model_directory)
        assert isinstance(shape, DecoderShape)
        tokenizer, seed = read_tokenizer(program.settings.model_directory), program.settings.seed
        twin = Counting(Decoder(shape).to_empty(device="cpu"), tokenizer, seed=seed)
        twin.version, twin.calls = -1, calls
        engines.append(twin)
        server = EngineServer(twin, IDENTITY, vocabulary=shape.vocabulary_size, largest=LARGEST)
        client = RemoteEngine(*await pair(server.connection), name="one", deadline=deadline)
        await client.hello(PATIENCE)
        return client

    step = Learner.step

    def learn(*arguments: Any, **settings: Any) -> Any:
        calls.extend(("learn", engine.held) for engine in engines)
        return step(*arguments, **settings)

    monkeypatch.setattr(fleets_of, "start_replica", start)
    monkeypatch.setattr(Learner, "step", learn)
    options = ["--iterations", "2", "--prompts", "2", "--method.group_size", "4", "--method.minibatches", "1"]
    options += ["--evaluate.problems", "1", "--sampling.max_tokens", "12", "--out", str(tmp_path)]
    assert main(["train", *options, "--engine", SAME, "--name", "same"]) == 0
    held = sum(x.nbytes for x in read_model(find_model("calculator")).state_dict().values())
    order: list[str] = []
    for name, bytes_ in calls:
        assert bytes_ == 0 if name in ("sleep", "learn") else bytes_ >= held, (name, bytes_)
        order += [name] if order[-1:] != [name] else []
    whole = ["load", "probe", "sample", "sleep", "learn"]
    assert order == [*whole, *whole, "load", "probe", "sample"] and len(engines) == 1
    assert main(["train", *options, "--name", "native"]) == 0
    models = [
        (next(tmp_path.glob(f"{name}-*")) / "model/model.safetensors").read_bytes() for name in ("same", "native")
    ]
    assert models[0] == models[1]


def shared(path: Path, model: Decoder, start: Any) -> SharedDeviceFleet:
    probe = WeightsProbe(model, without_end_token(), 1e-3)
    return SharedDeviceFleet(start, 1, exchange=WeightsFilesDirectory(path), probe=probe, max_num_seqs=64, restarts=3)


def test_a_replica_lost_in_its_sleep_is_replaced_at_the_next_load(tmp_path: Path) -> None:
    model, starts = decoder(), []

    async def start(number: int) -> RemoteEngine:
        starts.append(number)
        return await remote(blank(SleepingEngine), name="one")

    async def go() -> None:
        fleet = shared(tmp_path, model, start)
        assert isinstance(fleet, SharesDevice)
        await fleet.load(0, weights(model))
        await asyncio.gather(*map(fleet.sample, REQUESTS))
        await fleet.sleep()
        with pytest.raises(EngineLost, match="sleep while the learner trains"):
            await fleet.sample(REQUESTS[0])
        fleet.replicas[0].fail("killed by the test")
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(starts) == 1 and not fleet.replicas  # none begins beside the learner
        await fleet.load(1, changed(model))
        native = engine(model)
        native.version = 1
        assert list(await asyncio.gather(*map(fleet.sample, REQUESTS))) == await answers(native)
        assert len(starts) == 2

    async def answers(native: Any) -> list[Any]:
        return list(await asyncio.gather(*map(native.sample, REQUESTS)))

    run(go())


class SleepsBadly(SleepingEngine):
    async def sleep(self) -> None:
        raise RuntimeError("no memory was freed")


def test_sleep_returns_when_a_replica_that_keeps_its_memory_has_ended(tmp_path: Path) -> None:
    model, ended = decoder(), []

    async def start(number: int) -> RemoteEngine:
        one = await remote(blank(SleepsBadly), name="one")
        end = one.end
        one.end = lambda: ended.append(number) or end()  # type: ignore[method-assign, func-returns-value]
        return one

    async def go() -> None:
        fleet = shared(tmp_path, model, start)
        await fleet.load(0, weights(model))
        await fleet.sleep()
        assert ended and not fleet.replicas

    run(go())


def test_an_engine_that_cannot_sleep_says_so(tmp_path: Path) -> None:
    async def go() -> None:
        client = await remote(blank())
        with pytest.raises(Usage, match="cannot free its memory"):
            await client.sleep()

    run(go())


def test_what_cannot_share_a_device_is_refused() -> None:
    recipe = resolved(read_recipe(f"method = 'gspo'\nengine = {SAME}\ncluster.max_staleness = 1"))
    (error,) = check_place(recipe)
    assert isinstance(error, Usage) and "--cluster.max_staleness 0" in error.fix
    assert not check_place(replace(recipe, cluster=replace(recipe.cluster, max_staleness=0)))
    with pytest.raises(ValueError, match="engines at addresses cannot free memory"):
        Served(addresses=("one.sock",), placement="colocated")
    directory = find_model("calculator")
    with pytest.raises(Usage, match="vLLM cannot run this model") as refused:
        Vllm(placement="colocated").build(read_model(directory), read_tokenizer(directory), seed=0, experts=None)
    assert "on GPUs only" in refused.value.evidence and "Served" in refused.value.fix


def test_the_plan_frees_the_engine_before_the_learner_works() -> None:
    """Both peaks: sampling has the engine's copy of the weights and its cache, learning has neither."""
    shape = read_shape(find_model("calculator"))
    same, apart = (
        resolved(read_recipe(f"method = 'gspo'\nengine = {text}"))
        for text in (SAME, SAME.replace("colocated", "separate"))
    )
    freed, kept = (run_memory(recipe, shape, 12) for recipe in (same, apart))  # type: ignore[arg-type]
    engine_bytes = freed.phase_bytes["sampling"]
    assert engine_bytes == kept.phase_bytes["sampling"] and engine_bytes["engine"] > 4 * freed.parameter_count
    for phase in ("measuring", "learning", "updating"):
        assert "engine" not in freed.phase_bytes[phase] and "rows" not in freed.phase_bytes[phase]
        assert sum(kept.phase_bytes[phase].values()) - sum(freed.phase_bytes[phase].values()) == sum(
            engine_bytes.values()
        )


def test_a_sleeping_engine_answers_as_before_after_it_wakes() -> None:
    model, own = decoder(), decoder(spread=0.1)
    twin = SleepingEngine(own, without_end_token(), seed=11)

    async def go() -> None:
        await twin.load(0, weights(model))
        await twin.sleep()
        await twin.sleep()
        assert not any(x.untyped_storage().nbytes() for x in own.state_dict().values())
        with pytest.raises(EngineLost):
            await twin.score((1, 2), (3,))
        await twin.load(0, weights(model))

    run(go())
    assert generate(twin, REQUESTS) == generate(engine(model), REQUESTS)
    assert torch.equal(own.unembedding, model.unembedding)
