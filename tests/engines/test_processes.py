"""Engines in child processes: a run's bytes through kill -9 and SIGSTOP, and what is left behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from groupwise.core import Usage, WorkerLost
from groupwise.data import Generation, GenerationRequest
from groupwise.engines import (
    EngineAccess,
    EngineIdentity,
    NativeEngine,
    Served,
    Vllm,
    WeightsFile,
    WeightsFilesDirectory,
)
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote.replica import Replica
from groupwise.models import Decoder, Lora, MixtureOfExpertsSizes, attach, find_model, read_model, read_tokenizer
from tests.processes import PATIENCE, hasten, wait_until_gone
from tests.rollout.fakes import decoder, request
from tests.rollout.fakes import tokenizer as letters
from tests.toys.echo import SHAPE, ToyRun, small, tokenizer


def toy(directory: Path, served: Served | None = None, exchange: str = "") -> ToyRun:
    """Five iterations of a tiny decoder, with the native engine or with engines in child processes."""
    model = Decoder.new(replace(SHAPE, model_family="qwen3"), 5, spread=0.3)
    access = EngineAccess(exchange_directory=exchange)
    engine = served.build(model, tokenizer(), seed=0, experts=None, access=access) if served else None
    return ToyRun(method=small("grpo"), directory=directory, policy=model, engine=engine, iterations=5, max_tokens=6)


@pytest.mark.parametrize("transport", ["memory", pytest.param("file", marks=pytest.mark.slow)])
def test_a_run_has_the_native_bytes_through_kills_and_stops_while_sampling_and_loading(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process of two is killed and one stopped while it samples, and again while it loads."""
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    at_sample = {40: signal.SIGKILL, 80: signal.SIGSTOP}
    at_version = {3: signal.SIGKILL, 4: signal.SIGSTOP}
    sent: list[tuple[str, int]] = []
    pids: set[int] = set()
    in_files: set[bool] = set()
    count = [0]
    sample, fetch = Replica.sample, Replica.fetch

    def disturb(replica: Replica, when: str, number: int | None) -> None:
        pids.add(replica.process.pid)
        if number is not None:
            os.kill(replica.process.pid, number)
            if number == signal.SIGSTOP:
                hasten(replica)
            sent.append((when, number))

    async def sampled(self: Replica, request: GenerationRequest) -> Generation:
        count[0] += 1
        disturb(self, "sample", at_sample.pop(count[0], None))
        return await sample(self, request)

    async def fetched(self: Replica, file: WeightsFile) -> None:
        in_files.add(file.in_memory_weights is None and file.path.is_relative_to(exchange))
        disturb(self, "load", at_version.pop(file.version, None))
        await fetch(self, file)

    monkeypatch.setattr(Replica, "sample", sampled)
    monkeypatch.setattr(Replica, "fetch", fetched)
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(exchange))
    before = sealed_weights()
    run = toy(tmp_path / "served", Served(), str(exchange) if transport == "file" else "")
    run.go()
    assert in_files == {transport == "file"}
    assert not [*exchange.glob("*/weights-*")] and sealed_weights() <= before, "weights end with the fleet"
    kill, stop = signal.SIGKILL, signal.SIGSTOP
    assert sorted(sent) == sorted([("sample", kill), ("sample", stop), ("load", kill), ("load", stop)])
    wait_until_gone(sorted(pids))
    native = toy(tmp_path / "native")
    native.go()
    assert all(torch.equal(x, native.weights()[name]) for name, x in run.weights().items())
    assert [run.samples(i) for i in range(1, 6)] == [native.samples(i) for i in range(1, 6)]
    del run
    gc.collect()
    assert not [*exchange.iterdir()] and sealed_weights() <= before


def sealed_weights() -> set[str]:
    """The memory with weights that this process holds."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own descriptor
            status = os.stat(f"/proc/self/fd/{name}")
            if "groupwise-weights-" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(f"{name} {status.st_ino}")
    return found


HOST = """
import asyncio, os, signal, sys
from groupwise.engines import EngineAccess, Served
from tests.rollout.fakes import decoder, request
from tests.rollout.fakes import tokenizer as letters

async def main():
    model = decoder(model_family="qwen3")
    access = EngineAccess(exchange_directory=sys.argv[1] if sys.argv[2] == "file" else "")
    fleet = Served().build(model, letters(), seed=0, experts=None, access=access)
    await fleet.load(0, dict(model.state_dict()))
    while len(fleet.replicas) < 2:
        await asyncio.sleep(0.01)
    pids = [replica.process.pid for replica in fleet.replicas]
    os.kill(pids[1], signal.SIGSTOP)
    print(*pids, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a stopped process with its parent")
@pytest.mark.parametrize("transport", ["memory", "file"])
def test_replicas_end_with_a_killed_host_and_the_next_run_removes_its_directory(transport: str, tmp_path: Path) -> None:
    """Weights in memory have no name in a file system, so the kernel frees them with the processes."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path), transport], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert host.stdout is not None
    pids = [int(word) for word in host.stdout.readline().split()]
    host.kill()
    host.wait(PATIENCE)
    host.stdout.close()
    assert len(pids) == 2
    wait_until_gone(pids)
    assert len([*tmp_path.iterdir()]) == 1 and not [*Path("/dev/shm").glob("*groupwise*")]
    assert len([*tmp_path.glob("*/weights-*")]) == (transport == "file")
    exchange = WeightsFilesDirectory(tmp_path)
    assert [*tmp_path.iterdir()] == [exchange.path] and exchange.path.stat().st_mode & 0o777 == 0o700
    exchange.close()
    assert not [*tmp_path.iterdir()]


def test_the_last_lines_of_a_process_that_does_not_start_are_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no memory for the weights >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    model = decoder(model_family="qwen3")
    fleet = Served(max_restarts=1).build(model, letters(), seed=0, experts=None)
    with pytest.raises(WorkerLost, match="no engine is left") as caught:
        asyncio.run(asyncio.wait_for(fleet.load(0, dict(model.state_dict())), PATIENCE))
    assert "exit code 3" in caught.value.evidence and "no memory for the weights" in caught.value.evidence


@pytest.mark.parametrize(
    "wrong", [{"replicas": -1}, {"replicas": 0}, {"deadline": 0}, {"max_restarts": -1}, {"max_num_seqs": 0}], ids=str
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Served(**wrong)


def train_adapter(model: nn.Module) -> None:
    """Change the matrices of an adapter that are 0 at the start."""
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_B" in name:
                x.add_(0.3)


async def scores(model: nn.Module, engine: Any) -> list[float]:
    """The log-probs of two tokens by an engine with the model's present weights."""
    await engine.load(1, dict(model.state_dict()))
    return [*await engine.score((1, 2), (3, 4))]


def test_a_model_with_an_adapter_gives_the_bits_of_the_native_engine() -> None:
    """Its adapter was changed by a step, and the child reads no weight from the adapter's file."""
    pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
    model = decoder(model_family="qwen3")
    attach(model, Lora(rank=2, target_modules=("q_proj", "down_proj")), seed=3)
    requests = [request(i) for i in range(4)]

    async def go(engine: Any) -> list[Any]:
        await engine.load(1, dict(model.state_dict()))
        return [*await asyncio.gather(*map(engine.sample, requests)), await engine.score((1, 2), (3, 4))]

    before = asyncio.run(go(NativeEngine(model, letters(), seed=0)))
    fleet = Served(replicas=1).build(model, letters(), seed=0, experts=None)
    train_adapter(model)
    native = asyncio.run(go(NativeEngine(model, letters(), seed=0)))
    assert native != before
    assert asyncio.run(asyncio.wait_for(go(fleet), PATIENCE)) == native
    plain = EngineIdentity.of(decoder(model_family="qwen3"), letters(), seed=0)
    assert EngineIdentity.of(model, letters(), seed=0).model_hash != plain.model_hash


class Merged(Served):
    """Engines that cannot load an adapter, as vLLM's."""

    loads_adapters = False


def test_an_engine_without_adapters_gets_the_merged_weights() -> None:
    pytest.importorskip("peft")
    model = decoder(model_family="qwen3")
    attach(model, Lora(rank=2, target_modules=("q_proj", "down_proj")), seed=3)
    train_adapter(model)

    native = asyncio.run(scores(model, NativeEngine(model, letters(), seed=0)))
    fleet = Merged(replicas=1).build(model, letters(), seed=0, experts=None)
    assert asyncio.run(asyncio.wait_for(scores(model, fleet), PATIENCE)) == pytest.approx(native, abs=1e-5)


@pytest.mark.usefixtures("bitsandbytes")
def test_an_engine_of_merged_weights_gets_a_base_in_4_bits_dequantised() -> None:
    """As vLLM does: the engine knows neither the adapter nor the layers in 4 bits. Native engines refuse the base."""
    pytest.importorskip("peft")
    directory = find_model("calculator")
    model, tokenizer = read_model(directory, quantization="nf4"), read_tokenizer(directory)
    attach(model, Lora(rank=2, target_modules=("q_proj", "down_proj")), seed=3)
    train_adapter(model)

    class MergedAsVllm(Merged):
        check_servable = Vllm.check_servable

    native = asyncio.run(scores(model, NativeEngine(model, tokenizer, seed=0)))
    with pytest.raises(Usage, match="cannot run this model"):
        Served(replicas=1).build(model, tokenizer, seed=0, experts=None)
    fleet = MergedAsVllm(replicas=1).build(model, tokenizer, seed=0, experts=None)
    assert asyncio.run(asyncio.wait_for(scores(model, fleet), PATIENCE)) == pytest.approx(native, abs=1e-4)


def test_a_model_that_another_process_cannot_build_is_refused_with_the_reason() -> None:
    experts = MixtureOfExpertsSizes(router_count=1, experts_per_token=1, expert_count=2)
    with pytest.raises(Usage, match="cannot run this model") as caught:
        Served().build(decoder(model_family="qwen3"), letters(), seed=0, experts=experts)
    assert "replay" in caught.value.evidence and "Native" in caught.value.fix
