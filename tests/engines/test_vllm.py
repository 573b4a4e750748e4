"""The engine Vllm with vLLM: tokens, weights in flight, killed processes, and a run. `make test-vllm` runs these."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions

from groupwise.__main__ import main
from groupwise.core import LogprobMismatch, Usage
from groupwise.data import Finish, Generation, GenerationRequest, Sampling
from groupwise.engines import EngineAccess, Fleet, NativeEngine, Vllm
from groupwise.engines.remote import engine_slots, gpu_weights
from groupwise.engines.remote.replica import Replica, ReplicaProgram, ReplicaSettings
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON, child_environment
from groupwise.models import Decoder, DecoderShape, Tokenizer, find_model, read_model, read_tokenizer
from tests.processes import children, descendants, hasten, wait_until_gone

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

PYTHON = str(Path(DEFAULT_PYTHON).absolute())
ACCESS = EngineAccess(python=PYTHON)
SECONDS = 1000.0
WORDS = [sys.executable, "-m", "groupwise"]
ROUNDING = 1e-4
"""The largest difference of a log-prob between vLLM and the native engine, about ten times what was seen."""
ROUNDING_OF_ONE = 2e-5
"""The largest difference from float64, twice what was seen of one device and of two. The native engine's was 1.8e-5."""


def run(call: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(call, SECONDS))


def calculator() -> tuple[Decoder, Tokenizer]:
    model, directory = read_model(find_model("calculator")), find_model("calculator")
    assert isinstance(model, Decoder)
    return model, read_tokenizer(directory)


def requests(tokenizer: Tokenizer, prompts: int = 16, samples: int = 16, **sampling: Any) -> list[GenerationRequest]:
    texts = [f"{i % 9 + 1}*{i * 7 % 9 + 1}+{i * 5 % 9 + 1}-{i % 4 + 1}=" for i in range(prompts)]
    settings = Sampling(max_tokens=48, **sampling)
    return [
        GenerationRequest(context=tokenizer.encode(text), limit=48, draw_id=i, stream=(j,), sampling=settings)
        for i, text in enumerate(texts)
        for j in range(samples)
    ]


async def answers(engine: Fleet | NativeEngine, asked: list[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*map(engine.sample, asked)))


async def started(engine: Fleet, asked: list[GenerationRequest]) -> list[asyncio.Task[Generation]]:
    """Tasks of these requests, of which one has its answer and others do not."""
    tasks = [asyncio.create_task(engine.sample(request)) for request in asked]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert not all(task.done() for task in tasks)
    return tasks


def gap(a: Generation, b: Generation) -> float:
    return max((abs(x - y) for x, y in zip(a.logp, b.logp)), default=0.0)


def equal(a: list[Generation], b: list[Generation]) -> None:
    """Asserts equal tokens, finishes and versions, and log-probs that are equal up to rounding."""
    assert [(x.tokens, x.finish, x.versions) for x in a] == [(x.tokens, x.finish, x.versions) for x in b]
    assert max(map(gap, a, b)) < ROUNDING


def test_answers_are_those_of_the_native_engine() -> None:
    """Temperatures, truncation, stop strings, partial rollouts, scores, likeliest tokens, and a cancelled request."""

    async def go() -> None:
        model, tokenizer = calculator()
        native = NativeEngine(model, tokenizer, seed=7)
        fleet = Vllm(max_num_seqs=64).build(model, tokenizer, seed=7, experts=None, access=ACCESS)
        await fleet.load(0, dict(model.state_dict()))
        for sampling in (
            {}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.8, "top_k": 5, "min_p": 0.02},
            {"stop": ("35;", "#1")},
        ):  # fmt: skip
            asked = requests(tokenizer, **sampling)
            equal(await answers(fleet, asked), await answers(native, asked))
        whole = requests(tokenizer, 4, 4)
        first = await answers(fleet, [replace(request, limit=5) for request in whole])
        resumed = [replace(request, context=request.context + part.tokens, already_generated_count=len(part.tokens),
        limit=48)
                   for request, part in zip(whole, first) if part.finish is Finish.length]  # fmt: skip
        assert resumed
        equal(await answers(fleet, resumed), await answers(native, resumed))
        context, tokens = (5,) * 64, tuple(i % 17 for i in range(64))  # as long as the model allows
        scores = zip(await fleet.score(context, tokens), await native.score(context, tokens))
        assert max(abs(a - b) for a, b in scores) < ROUNDING
        top = replace(whole[0], num_top_logprobs=3)
        (a,), (b,) = await answers(fleet, [top]), await answers(native, [top])
        assert [[token for token, _ in place] for place in a.top_logprobs] == [
            [t for t, _ in p] for p in b.top_logprobs
        ]
        with pytest.raises(Usage, match="do not fit"):
            await fleet.sample(replace(whole[0], limit=128))
        with pytest.raises(Usage, match="temperature 1 only"):
            await fleet.score((1, 2), (3,), temperature=0.5)
        sampling_tasks = await started(fleet, requests(tokenizer))
        for task in sampling_tasks:
            task.cancel()
        ends = await asyncio.gather(*sampling_tasks, return_exceptions=True)
        assert any(isinstance(end, asyncio.CancelledError) for end in ends)
        equal(await answers(fleet, whole), await answers(native, whole))

    run(go())


def test_weights_change_between_two_tokens_and_each_token_is_of_its_version() -> None:
    """Loads alternate between two weights until one meets running answers: on a busy machine they may end before."""

    async def go() -> None:
        model, tokenizer = calculator()
        weights = [{name: x * scale for name, x in model.state_dict().items()} for scale in (1.0, 1.1)]
        fleet = Vllm(max_num_seqs=64).build(model, tokenizer, seed=0, experts=None, access=ACCESS)
        judges = [NativeEngine(read_model(find_model("calculator")), tokenizer, seed=0) for _ in weights]
        for judge, state in zip(judges, weights):
            await judge.load(1, state)
        await fleet.load(0, dict(model.state_dict()))
        asked = requests(tokenizer, prompts=64)  # most of them still wait for a row when the weights change
        mixed: list[tuple[GenerationRequest, Generation]] = []
        for version in range(1, 9):
            tasks = await started(fleet, asked)
            with torch.no_grad():
                for name, x in model.state_dict().items():
                    x.copy_(weights[version % 2][name])  # as the learner does, in place
            await fleet.load(version, dict(model.state_dict()))
            found = await asyncio.gather(*tasks)
            assert {v for x in found for v in x.versions} <= {version - 1, version}
            if mixed := [(request, x) for request, x in zip(asked, found) if len(set(x.versions)) == 2]:
                break
        assert mixed
        for request, x in mixed[:32]:
            assert list(x.versions) == sorted(x.versions)
            scores = [await judge.score(request.context, x.tokens) for judge in judges]
            expected = [scores[version % 2][i] for i, version in enumerate(x.versions)]
            assert max(abs(a - b) for a, b in zip(x.logp, expected)) < ROUNDING

    run(go())


HALF = """
import json, sys
from groupwise.engines.vllm import vllm_engine as vllm

def replace_weights(self, path):
    self.reload_weights(weights_iterator=iter(vllm.load_file(path).items()))

vllm.WorkerExtension.replace_weights = replace_weights
if __name__ == "__main__":
    vllm.main(json.loads(sys.argv[1]), int(sys.argv[2]))
if __name__ == "__mp_main__":
    vllm.end_with_parent(int(sys.argv[2]))
"""


def test_the_probe_sees_a_head_that_keeps_the_weights_of_its_first_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `WorkerExtension.replace_weights`, vLLM embeds with new weights and predicts with old ones."""
    (tmp_path / "half.py").write_text(HALF)
    program = Vllm.program

    def half(self: Vllm, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        whole = program(self, settings, access)
        path = os.pathsep.join([whole.environment_variables["PYTHONPATH"], str(tmp_path)])
        return replace(whole, module="half", environment_variables={**whole.environment_variables, "PYTHONPATH": path})

    monkeypatch.setattr(Vllm, "program", half)
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    shape = DecoderShape(
        vocabulary_size=2048,
        hidden_size=256,
        layers=1,
        heads=4,
        kv_heads=2,
        head_dim=64,
        mlp_width=256,
        tied_embeddings=True,
        qk_norm=True,
        max_positions=128,
        model_family="qwen3",
    )

    async def go() -> None:
        model = Decoder.new(shape, 3, spread=0.3)
        fleet = Vllm(max_num_seqs=8, max_restarts=0).build(model, calculator()[1], seed=0, experts=None, access=ACCESS)
        with pytest.raises(LogprobMismatch) as caught:
            await fleet.load(0, dict(model.state_dict()))
            with torch.no_grad():
                for x in model.parameters():
                    x.mul_(1.25)
            await fleet.load(1, dict(model.state_dict()))
        assert "neither the new nor the old weights" in caught.value.evidence

    run(go())


def test_answers_are_equal_through_kill_9_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the process that we started is killed while it samples, then the one that vLLM started from it."""
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    before = shared_memory()
    pids: list[int] = []

    async def go() -> None:
        model, tokenizer = calculator()
        fleet = Vllm(max_num_seqs=64).build(model, tokenizer, seed=0, experts=None, access=ACCESS)
        await fleet.load(0, dict(model.state_dict()))
        asked = requests(tokenizer)
        expected = await answers(NativeEngine(model, tokenizer, seed=0), asked)
        for victim in (0, 1):
            (replica,) = fleet.replicas
            assert isinstance(replica, Replica)
            processes = [replica.process.pid, *children(replica.process.pid)]
            pids.extend(processes)
            tasks = await started(fleet, asked)
            os.kill(processes[0] if victim == 0 else engine_core(processes), signal.SIGKILL)
            equal(await asyncio.gather(*tasks), expected)
        (replica,) = fleet.replicas
        assert isinstance(replica, Replica) and replica.process.pid not in pids
        pids.extend([replica.process.pid, *children(replica.process.pid)])

    run(go())
    wait_until_gone(pids)
    assert shared_memory() <= before


def test_two_workers_share_each_layer_and_the_answers_are_equal_through_kill_9_and_sigstop_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal texts on 64 prompts, before and after a load. The sampler runs in both workers, with the same keys.

    Log-probs are as near to float64 as those of one device: the sum of the workers' parts adds no error of its own.
    """
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    pids: list[int] = []

    async def go() -> None:
        model, tokenizer = calculator()
        native = NativeEngine(model, tokenizer, seed=0)
        exact = NativeEngine(read_model(find_model("calculator"), dtype=torch.float64), tokenizer, seed=0)
        settings = Vllm(max_num_seqs=64, tensor_parallel_size=2, deadline=120.0)
        fleet = settings.build(model, tokenizer, seed=0, experts=None, access=ACCESS)
        asked = requests(tokenizer, prompts=64, samples=1)
        for version, scale in enumerate((1.0, 1.1)):
            state = {name: scale * x for name, x in model.state_dict().items()}
            model.load_state_dict(state)
            await fleet.load(version, dict(model.state_dict()))
            await native.load(version, dict(model.state_dict()))
            await exact.load(version, {name: x.double() for name, x in state.items()})
            equal(found := await answers(fleet, asked), await answers(native, asked))
            scores = [await exact.score(request.context, x.tokens) for request, x in zip(asked, found)]
            assert max(abs(a - b) for x, row in zip(found, scores) for a, b in zip(x.logp, row)) < ROUNDING_OF_ONE
        for number in (signal.SIGKILL, signal.SIGSTOP):
            (replica,) = fleet.replicas
            assert isinstance(replica, Replica) and replica.process.pid not in pids
            processes = [replica.process.pid, *descendants(replica.process.pid)]
            pids.extend(processes)
            workers = [pid for pid in processes if "Worker" in Path(f"/proc/{pid}/cmdline").read_text()]
            assert len(workers) == 2
            tasks = await started(fleet, requests(tokenizer))
            os.kill(workers[1], number)
            if number == signal.SIGSTOP:
                hasten(replica, 10.0)
            equal(await asyncio.gather(*tasks), await answers(native, requests(tokenizer)))
        (replica,) = fleet.replicas
        assert isinstance(replica, Replica) and replica.process.pid not in pids
        pids.extend([replica.process.pid, *descendants(replica.process.pid)])

    run(go())
    wait_until_gone(pids)


COUNTED = """
import json, os, sys
from pathlib import Path
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from groupwise.engines.vllm import vllm_engine as vllm

replace, load = vllm.WorkerExtension.replace_weights, vllm.load_file

class Touched(TorchDispatchMode):
    def __init__(self, weights):
        super().__init__()
        self.elements = 0
        self.blocks = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in weights.values()]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        on_meta = isinstance(result, torch.Tensor) and result.is_meta
        for x in () if function.is_view or on_meta else args:
            if isinstance(x, torch.Tensor) and any(start <= x.data_ptr() < end for start, end in self.blocks):
                self.elements += x.numel()
        return result

def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])

def counted(self, path):
    before, weights = read_bytes(), load(path)
    vllm.load_file = lambda path: weights
    with Touched(weights) as touched:
        replace(self, path)
    sizes = {name: x.numel() for name, x in weights.items()}
    figures = {"elements": touched.elements, "read": read_bytes() - before, "sizes": sizes}
    Path(os.environ["FIGURES"], str(os.getpid())).write_text(json.dumps(figures))

vllm.WorkerExtension.replace_weights = counted
if __name__ == "__main__":
    vllm.main(json.loads(sys.argv[1]), int(sys.argv[2]))
if __name__ == "__mp_main__":
    vllm.end_with_parent(int(sys.argv[2]))
    sys.argv[2] = str(os.getpid())
"""


def test_a_worker_takes_its_part_of_a_mapped_file_and_reads_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers touch each weight of a layer once together, and the norms, which are not shared, once each."""
    (tmp_path / "counted.py").write_text(COUNTED)
    (figures := tmp_path / "figures").mkdir()
    program = Vllm.program

    def counted(self: Vllm, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        whole = program(self, settings, access)
        path = os.pathsep.join([whole.environment_variables["PYTHONPATH"], str(tmp_path)])
        environment = {**whole.environment_variables, "PYTHONPATH": path, "FIGURES": str(figures)}
        return replace(whole, module="counted", environment_variables=environment)

    monkeypatch.setattr(Vllm, "program", counted)

    async def go() -> None:
        model, tokenizer = calculator()
        settings = Vllm(max_num_seqs=8, tensor_parallel_size=2, deadline=120.0)
        await settings.build(model, tokenizer, seed=0, experts=None, access=ACCESS).load(0, dict(model.state_dict()))

    run(go())
    one, two = [json.loads(file.read_text()) for file in figures.iterdir()]
    norms = sum(size for name, size in one["sizes"].items() if "norm" in name)
    assert norms > 0 and one["elements"] + two["elements"] == sum(one["sizes"].values()) + norms
    assert max(one["elements"], two["elements"]) < 0.6 * sum(one["sizes"].values())
    assert max(one["read"], two["read"]) < sum(one["sizes"].values()), "a quarter of the file: it is mapped"


def shared_memory() -> set[Path]:
    """The shared memory and semaphores of Python's processes. vLLM has no others."""
    return {path for pattern in ("psm_*", "sem.mp-*") for path in Path("/dev/shm").glob(pattern)}


def engine_core(pids: list[int]) -> int:
    return next(pid for pid in pids if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text())


ADAPTER = ("--lora.rank", "8", "--optimizer.lr", "1e-3")


@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize(
    "words", [(), ADAPTER, (*ADAPTER, "--machine.quantization", "nf4")], ids=["whole", "adapter", "base in 4 bits"]
)
def test_a_run_has_the_bytes_of_the_native_run(words: tuple[str, ...], home: Path) -> None:
    """Old log-probs are recomputed by the learner, so equal tokens give equal weights.

    vLLM gets the sum of an adapter and its base, which is dequantised if it is in 4 bits.
    """
    run = ["train", "--iterations", "3", "--prompts", "8", "--evaluate.problems", "16", *words]
    assert main([*run, "--name", "native"]) == 0
    assert main([*run, "--name", "vllm", "--engine.kind", "Vllm", "--engine-python", PYTHON]) == 0
    (native,), (vllm,) = ([*home.glob(f"runs/{name}-*")] for name in ("native", "vllm"))
    file = "checkpoints/000003/tensors.safetensors"
    assert (native / file).read_bytes() == (vllm / file).read_bytes()


def test_an_engine_for_other_hosts_gives_the_bytes_of_the_native_run(tmp_path: Path) -> None:
    """`groupwise serve --engine Vllm --listen`: weights are sent over TLS, and SIGTERM leaves nothing behind."""
    places, environment = tmp_path / "tmp", {**os.environ, "GROUPWISE_SECRET": "s" * 32}
    places.mkdir()
    words = [sys.executable, "-m", "groupwise"]
    serve = [
        "serve", "calculator", "--engine", "Vllm", "--engine-python", PYTHON, "--listen", "127.0.0.1:0",
        "--engine.max_num_seqs", "64",
    ]  # fmt: skip
    process = subprocess.Popen(
        [*words, *serve], env={**environment, "TMPDIR": str(places)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = next(line for line in process.stdout if " is served at " in line).split()[4].rstrip(";")
    engines = ["Native", f'{{ kind = "Served", replicas = 0, addresses = ["{address}"] }}']
    for name, engine in zip(("native", "served"), engines):
        train = ["train", "--name", name, "--iterations", "2", "--prompts", "8", "--evaluate.problems", "16"]
        train += ["--engine", engine] if name == "served" else []
        done = subprocess.run([*words, *train], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    process.terminate()
    assert process.wait(100) == 128 + signal.SIGTERM and not [*places.glob("groupwise-engines-*")]
    process.stdout.close()
    (native,), (served,) = ([*tmp_path.glob(f"runs/{name}-*")] for name in ("native", "served"))
    file = "checkpoints/000002/tensors.safetensors"
    assert (native / file).read_bytes() == (served / file).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_served_engine_of_two_devices_that_loses_a_worker_ends_and_the_run_goes_on_with_another(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The worker is lost after the first iteration. The command ends with exit code 7 and all its processes.

    The run waits for the engine that is started again at the socket, and has the bytes of the native run.
    """
    train = ["train", "--iterations", "3", "--prompts", "8", "--evaluate.problems", "8", "--name"]
    assert subprocess.run([*WORDS, *train, "native"], cwd=tmp_path, capture_output=True).returncode == 0
    socket = tmp_path / "one.sock"
    engine = f'{{ kind = "Served", replicas = 0, max_restarts = 20, addresses = ["{socket}"] }}'
    with served_on_two(socket) as first, (tmp_path / "output").open("w") as output:
        pids = descendants(first.pid)
        workers = [pid for pid in pids if "Worker" in Path(f"/proc/{pid}/cmdline").read_text()]
        assert len(workers) == 2
        trainer = subprocess.Popen([*WORDS, *train, "served", "--engine", engine], cwd=tmp_path, stderr=output)
        end = time.monotonic() + SECONDS
        while not re.search("^1/3 ", (tmp_path / "output").read_text(), re.M):
            assert trainer.poll() is None and time.monotonic() < end, (tmp_path / "output").read_text()
            time.sleep(0.1)
        os.kill(workers[1], number)
        assert first.wait(SECONDS) == 7 and not socket.exists()
        wait_until_gone(pids)
        assert trainer.poll() is None
        with served_on_two(socket) as second:
            assert trainer.wait(SECONDS) == 0, (tmp_path / "output").read_text()
            pids = descendants(second.pid)
            second.terminate()
            assert second.wait(SECONDS) == 128 + signal.SIGTERM
    wait_until_gone(pids)
    (native,), (served,) = ([*tmp_path.glob(f"runs/{name}-*")] for name in ("native", "served"))
    file = "checkpoints/000003/tensors.safetensors"
    assert (native / file).read_bytes() == (served / file).read_bytes()


@contextmanager
def served_on_two(socket: Path) -> Iterator["subprocess.Popen[str]"]:
    """`groupwise serve` of an engine of two devices, which listens."""
    words = ["serve", "calculator", "--engine", "Vllm", "--engine.tensor_parallel_size", "2", "--engine.deadline", "20",
             "--engine.max_num_seqs", "64", "--engine-python", PYTHON, "--socket", str(socket)]  # fmt: skip
    process = subprocess.Popen([*WORDS, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert any(" is served at " in line for line in process.stdout)
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS)
        process.stdout.close()


def test_without_keys_the_distribution_is_the_native_one_and_tokens_are_not() -> None:
    async def go() -> None:
        model, tokenizer = calculator()
        native = NativeEngine(model, tokenizer, seed=0)
        fleet = Vllm(max_num_seqs=64, keyed_randomness=False).build(
            model, tokenizer, seed=0, experts=None, access=ACCESS
        )
        await fleet.load(3, dict(model.state_dict()))
        for temperature in (1.0, 0.7, 0.0):
            asked = requests(tokenizer, 4, 16, temperature=temperature)
            found = await answers(fleet, asked)
            expected = await answers(native, asked)
            assert ([x.tokens for x in found] == [x.tokens for x in expected]) is (temperature == 0.0)
            assert {version for x in found for version in x.versions} == {3}
            for request, x in [*zip(asked, found)][:8]:
                scores = await native.score(request.context, x.tokens, temperature=temperature)
                assert max(abs(a - b) for a, b in zip(x.logp, scores)) < ROUNDING

    run(go())


SIGNATURES = """
import inspect, json
from groupwise.engines.remote.gpu_weights import PLAIN, TRANSFERS, PackedTensorLayout
from groupwise.engines.vllm.vllm_weight_transfer_arguments import transfer_arguments
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.v1.worker.gpu_worker import Worker

tensors = PackedTensorLayout(["w", "b"], ["bfloat16", "float32"], [[2, 3], [4]])
handle = {name: "00" if name.endswith("handle") else 1 for name in PLAIN} | {"unique_id": "ff" * 128}
for transfer in TRANSFERS:
    WeightTransferConfig(backend=transfer)
    engine = WeightTransferEngineFactory._registry[transfer]()
    setup, update = transfer_arguments(transfer, handle, tensors, "GPU-1")
    engine.init_info_cls(**setup)
    engine.update_info_cls(**update)
calls = {"init_weight_transfer_engine": [{}], "start_weight_update": [], "update_weights": [{}],
         "finish_weight_update": [], "shutdown_weight_transfer_engine": []}
for name, arguments in calls.items():
    inspect.signature(getattr(Worker, name)).bind(None, *arguments)
inspect.signature(WeightTransferEngineFactory.create_engine).bind(1, 2, 3, 4)
print("ok")
"""


def test_the_calls_of_a_transfer_have_the_signatures_of_vllm(tmp_path: Path) -> None:
    """The classes of CUDA IPC and of NCCL take our arguments; neither can run without a GPU."""
    environment = child_environment(tmp_path, 1)
    done = subprocess.run([PYTHON, "-P", "-c", SIGNATURES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stderr


MAPPED = """
import functools, json, sys
from types import SimpleNamespace
import torch
from torch.multiprocessing import reductions
from groupwise.engines.vllm import vllm_engine as vllm

real = reductions.rebuild_cuda_tensor

@functools.wraps(real)
def rebuild(*arguments):
    with open(arguments[7], "rb") as block:
        return torch.frombuffer(bytearray(block.read()), dtype=torch.uint8)

reductions.rebuild_cuda_tensor = rebuild
torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid="GPU-0")
torch.accelerator.synchronize = lambda: None
vllm.VllmEngine.gpu_uuid = "GPU-0"
if __name__ == "__main__":
    vllm.main(json.loads(sys.argv[1]), int(sys.argv[2]))
if __name__ == "__mp_main__":
    vllm.end_with_parent(int(sys.argv[2]))
"""


def test_vllm_loads_weights_by_its_own_transfer_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's engine of CUDA IPC, with a file in the place of the GPU's memory: the probe accepts each version."""
    (tmp_path / "mapped.py").write_text(MAPPED)
    program = Vllm.program

    def mapped(self: Vllm, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        whole = program(self, settings, access)
        path = os.pathsep.join([whole.environment_variables["PYTHONPATH"], str(tmp_path)])
        return replace(
            whole, module="mapped", environment_variables={**whole.environment_variables, "PYTHONPATH": path}
        )

    def reduce_tensor(x: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        block = tmp_path / "block"
        block.write_bytes(x.numpy().tobytes())
        plain = (os.fsencode(block), x.nbytes, 0, False, b"", 0, b"", False)
        return None, (torch.Tensor, x.shape, x.stride(), 0, None, x.dtype, 0, *plain)

    monkeypatch.setattr(Vllm, "program", mapped)
    monkeypatch.setattr(Vllm, "publishes_on_gpu", lambda self, access, target: True)
    monkeypatch.setattr(gpu_weights, "gpu_uuid", lambda device: "GPU-0")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(reductions, "reduce_tensor", reduce_tensor)

    async def go() -> None:
        model, tokenizer = calculator()
        native = NativeEngine(model, tokenizer, seed=7)
        fleet = Vllm(max_num_seqs=64).build(model, tokenizer, seed=7, experts=None, access=ACCESS)
        asked = requests(tokenizer, 8, 8)
        for version in range(2):
            await fleet.load(version, dict(model.state_dict()))
            await native.load(version, dict(model.state_dict()))
            equal(await answers(fleet, asked), await answers(native, asked))
            with torch.no_grad():
                for x in model.parameters():
                    x.mul_(1.05)
        assert not [*tmp_path.glob("*.safetensors")]

    run(go())
