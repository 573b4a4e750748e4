"""`groupwise serve --replicas`: the words of each engine's process, and the processes until they end."""

import asyncio
import os
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands import serve_replicas
from groupwise.commands.parsing import options_of, parse, parser
from groupwise.commands.serve_native import ServeOptions
from groupwise.commands.serve_replicas import all_ended, one_of, serve_words
from groupwise.commands.served_engine import served_engine
from groupwise.core import Usage, WorkerLost
from groupwise.engines import Native, Vllm
from groupwise.engines.remote.replica_devices import visible_device

OPTIONS = ServeOptions(
    socket="", listen="0.0.0.0:7000", secret_file="secret", tls_key_file="key.pem", dtype="bfloat16", device="cuda",
    seed=3, threads=2, replicas=3, nccl=True, engine=Vllm(max_num_seqs=8, tensor_parallel_size=2),
)  # fmt: skip
ENGINE = [("engine", "{ kind = 'Vllm', max_num_seqs = 8 }"), ("engine.tensor_parallel_size", "2")]
"""The words of its engine."""


def test_each_engine_listens_at_its_own_address_and_sees_one_gpu() -> None:
    engines = [one_of(OPTIONS, index, f"cuda:{index + 1}") for index in range(3)]
    assert [each.listen for each in engines] == ["0.0.0.0:7000", "0.0.0.0:7001", "0.0.0.0:7002"]
    assert {(each.device, each.replicas) for each in engines} == {("cuda", 1)}
    assert visible_device("cuda:2", "4,5,6") == {"CUDA_VISIBLE_DEVICES": "6"}
    free = replace(OPTIONS, listen="[::1]:0")
    assert {one_of(free, index, "cpu").listen for index in range(3)} == {"[::1]:0"}
    sockets = replace(OPTIONS, listen="", socket="run/one.sock")
    assert [one_of(sockets, index, "cpu").socket for index in range(2)] == ["run/one-0.sock", "run/one-1.sock"]


def test_the_words_of_an_engine_give_its_options() -> None:
    engine = one_of(OPTIONS, 1, "cuda:1")
    table, options = parser()
    words = serve_words("--model", engine, ENGINE, "bin/python")
    given, overrides = parse(table, options, words[words.index("serve") :])
    assert options_of(ServeOptions, given, engine=served_engine(overrides)) == engine
    assert (given.model, given.engine_python) == ("--model", "bin/python")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engine.tensor_parallel_size", "2"], "write --engine '{ kind = \"Vllm\", tensor_parallel_size = 2 }'"),
        (["--engine", "{ kind = 'Vllm', tensor_parallel_size = 0 }"], "tensor_parallel_size is 0"),
        (["--engine", "Vllm", "--engine.gpu_memory_utilization", "2"], "gpu_memory_utilization is 2"),
        (["--engine", "Served"], "serve has the engines Native and Vllm"),
        (["--engine", "Vllm", "--engine.replicas", "8"], "--replicas N is serve's"),
        (["--engine.max_logprob_diff", "1"], "it is the run's"),
        (["--prompts", "8"], "takes the engine alone"),
        (["--max-num-seqs", "8"], "write --engine.max_num_seqs 8"),
        (["--engine", "Vllm", "--device", "cpu", "--engine.tensor_parallel_size", "3"], "not shared by 3 devices"),
    ],
)
def test_the_engine_is_that_of_a_recipe_with_its_checks_and_advice(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "calculator", "--socket", str(tmp_path / "one.sock"), *words]) == 2
    assert reason in capsys.readouterr().err


def test_each_setting_of_a_recipe_s_engine_reaches_it_or_is_refused() -> None:
    """The settings of an engine are read; the others are refused, unless they have their defaults."""
    values = {"max_num_seqs": 3, "kv_cache_tokens": 99, "batch_invariant": "false", "max_logprob_diff": 1.0,
              "replicas": 2, "addresses": ["one.sock"], "deadline": 7.0, "max_restarts": 1, "placement": "colocated",
              "devices": ["cuda:1"], "keyed_randomness": "false", "gpu_memory_utilization": 0.5,
              "enforce_eager": "true", "tensor_parallel_size": 2}  # fmt: skip
    assert {*values} == {field.name for field in fields(Vllm)}
    for kind in (Native, Vllm):
        for field in fields(kind):
            value = "true" if kind is Vllm and field.name == "batch_invariant" else values[field.name]
            words = [("engine.kind", kind.__name__), (f"engine.{field.name}", str(value))]
            if field.name in kind.served_settings:
                assert getattr(served_engine(words), field.name) != field.default
            else:
                with pytest.raises(Usage, match=f"does not read engine.{field.name}"):
                    served_engine(words)


def test_each_engine_has_its_own_set_of_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The commands are echoes of what their processes see."""
    echo = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"]
    monkeypatch.setattr(serve_replicas, "gpu_count", lambda: 8)
    monkeypatch.setattr(serve_replicas, "device_of", lambda name: name)
    monkeypatch.setattr(serve_replicas, "bound_command", lambda *words: echo)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    options = replace(OPTIONS, listen="", socket=str(tmp_path / "s"), tls_key_file="", nccl=False, device="cuda:1")
    with pytest.raises(WorkerLost):
        serve_replicas.serve_replicas("calculator", options, ENGINE, "")
    assert sorted(capfd.readouterr().out.split()) == ["1,2", "3,4", "5,6"]


def test_more_engines_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    monkeypatch.setattr(serve_replicas, "gpu_count", lambda: 2)
    options = replace(OPTIONS, secret_file=str(secret), tls_key_file="", nccl=False)
    monkeypatch.setattr(serve_replicas, "device_of", lambda name: name)
    with pytest.raises(Usage, match="3 engines of 2 GPUs, and this host has 2 GPUs"):
        serve_replicas.serve_replicas("calculator", options, ENGINE, "")


def test_an_engine_that_ends_is_named_and_the_others_go_on(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second process waits for the file that the test writes once the first one has been named."""
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nraise SystemExit(4)"
    commands = [[sys.executable, "-c", code] for code in ("import os; print(os.environ['A']); exit(3)", wait)]
    text = ""

    async def run() -> None:
        nonlocal text
        running = asyncio.create_task(all_ended(commands, [{"A": "one"}, {}]))
        while "ended" not in text:
            await asyncio.sleep(0.01)
            text += "".join(capfd.readouterr())
        assert not running.done()
        gate.touch()
        await running

    with pytest.raises(WorkerLost, match="engine 1 ended"):
        asyncio.run(run())
    assert "one\n" in text and "engine 0 ended: exit code 3" in text and "1 go on" in text


def test_all_engines_end_with_the_command(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w').close(); time.sleep(600)"

    async def run() -> None:
        running = asyncio.create_task(all_ended([[sys.executable, "-c", code]] * 2, [{}, {}]))
        while len(list(tmp_path.iterdir())) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    for path in tmp_path.iterdir():
        while Path(f"/proc/{path.name}/exe").exists():
            time.sleep(0.01)
        assert not os.path.exists(f"/proc/{path.name}/exe")
