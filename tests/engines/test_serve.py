"""`groupwise serve`: its end by a signal, its options, and vLLM for other hosts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from groupwise.__main__ import main
from groupwise.commands import serve_native as serving
from groupwise.commands import serve_vllm as serving_vllm
from groupwise.data import Generation
from groupwise.engines import NativeEngine, RemoteEngine, Served, TlsAddress
from groupwise.engines.remote.replica import ReplicaProgram, command
from tests.engines.test_vllm_requests import PLACED
from tests.processes import descendants, state_of, wait_until, wait_until_gone
from tests.rollout.fakes import request

SECONDS = 100.0
SECRET = "s" * 32


@contextmanager
def served(path: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of `groupwise serve` with its address. `path` is its directory for temporary files."""
    environment = {**os.environ, "GROUPWISE_SECRET": SECRET, "TMPDIR": str(path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "groupwise", "serve", "calculator", *words], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("calculator is served at ") and line.endswith("; Ctrl-C ends\n")
    try:
        yield process, line.split()[4].rstrip(";")
    finally:
        process.kill()
        process.communicate()


async def interrupted(process: subprocess.Popen[str], address: Path | TlsAddress, number: signal.Signals) -> str:
    """The errors that a serving process prints if it gets a signal while it answers requests."""
    client = await RemoteEngine.connect(address, secret=SECRET.encode(), deadline=SECONDS)
    asked = [asyncio.create_task(client.sample(request(i, context=(1, 2), limit=60))) for i in range(200)]
    await asyncio.sleep(0)  # they are sent
    process.send_signal(number)
    printed = await asyncio.to_thread(process.communicate, timeout=SECONDS)
    await asyncio.gather(*asked, return_exceptions=True)
    return printed[1]


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],  # ends as SIGTERM does
    ids=lambda x: x.name,
)
def test_a_signal_ends_an_engine_in_silence_and_removes_its_socket(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path, "--socket", str(tmp_path / "one.sock")) as (process, address):
        assert asyncio.run(interrupted(process, Path(address), number)) == ""
        assert process.returncode == 128 + number and not [*tmp_path.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its killed parent")
@pytest.mark.slow
def test_engines_go_on_while_the_command_of_all_is_stopped_and_end_when_it_is_killed(tmp_path: Path) -> None:
    """`serve --replicas`, stopped by SIGSTOP: both engines answer, with equal samples. Then killed: none is left."""
    with served(tmp_path, "--replicas", "2", "--socket", str(tmp_path / "one.sock")) as (process, _):
        assert process.stdout is not None
        assert " is served at " in process.stdout.readline()
        pids = descendants(process.pid)
        assert len(pids) == 2
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(Path(f"/proc/{process.pid}")) == "T", "the command was not stopped")
        first, second = (asyncio.run(answer(tmp_path / f"one-{index}.sock")) for index in range(2))
        assert first == second and first.tokens
        process.kill()
        process.wait(SECONDS)
        wait_until_gone(pids)


async def answer(address: Path) -> Generation:
    """An engine's answer to a request."""
    client = await RemoteEngine.connect(address, deadline=SECONDS)
    try:
        return await client.sample(request(0, context=(1, 2), limit=20))
    finally:
        client.close()


def test_a_signal_removes_the_directory_of_weights_from_other_hosts(tmp_path: Path) -> None:
    with served(tmp_path, "--listen", "127.0.0.1:0") as (process, text):
        address = TlsAddress.parse(text)
        assert address and [*tmp_path.glob("groupwise-engines-*")]
        assert asyncio.run(interrupted(process, address, signal.SIGTERM)) == ""
        assert process.returncode == 128 + signal.SIGTERM and not [*tmp_path.glob("groupwise-engines-*")]


def test_the_options_are_those_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []

    class Recorded(NativeEngine):
        def __init__(self, decoder: Any, tokenizer: Any, **settings: Any) -> None:
            built.append({**settings, "device": str(next(decoder.parameters()).device)})
            super().__init__(decoder, tokenizer, **settings)

    async def ends(serving: Any) -> int:
        serving.close()
        return 0

    monkeypatch.setattr("groupwise.engines.native_settings.NativeEngine", Recorded)
    monkeypatch.setattr(serving, "serve_until_signal", ends)
    options = ["--engine.max_num_seqs", "7", "--engine.kv_cache_tokens", "900", "--device", "cpu", "--seed", "3"]
    assert main(["serve", "calculator", "--socket", str(tmp_path / "s"), *options]) == 0
    assert built == [{"seed": 3, "experts": None, "max_num_seqs": 7, "kv_cache_tokens": 900, "device": "cpu"}]
    defaults = Served()
    assert main(["serve", "calculator", "--socket", str(tmp_path / "s")]) == 0
    assert (built[1]["max_num_seqs"], built[1]["kv_cache_tokens"]) == (defaults.max_num_seqs, defaults.kv_cache_tokens)


def test_a_place_to_listen_is_required(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUPWISE_SECRET", raising=False)
    for engine in ("Native", "Vllm"):
        assert main(["serve", "calculator", "--engine", engine]) == 2
        assert "name --socket FILE or --listen HOST:PORT" in capsys.readouterr().err
        assert main(["serve", "calculator", "--engine", engine, "--listen", "127.0.0.1:0"]) == 2
        assert "need a secret" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--engine", "Vllm", "--socket", "one.sock", "--device", "cuda"], "arrive by NCCL from other hosts"),
        (["--engine", "Vllm", "--listen", "127.0.0.1:0", "--device", "cpu"], "arrive by NCCL from other hosts"),
        (["--engine", "Native", "--listen", "127.0.0.1:0", "--device", "cuda"], "Native loads a file"),
    ],
)
def test_nccl_is_for_vllm_on_a_gpu_and_other_hosts(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPWISE_SECRET", SECRET)
    monkeypatch.setattr(serving, "device_of", lambda name: name)
    assert main(["serve", "calculator", "--nccl", *words]) == 2
    assert reason in capsys.readouterr().err


def test_vllm_listens_for_other_hosts_with_a_kept_key_and_the_file_of_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The interpreter of vLLM's environment is a script here, which prints its settings and ends."""
    monkeypatch.setattr(serving_vllm, "check_environment", lambda python, gpu: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "python").write_text('#!/bin/sh\necho "$8"\nexit 3\n')
    (tmp_path / "python").chmod(0o755)
    words = ["--listen", "0.0.0.0:7000", "--secret-file", "secret", "--key", "key.pem", "--engine.max_num_seqs", "9",
             "--engine.kv_cache_tokens", "640", "--engine.tensor_parallel_size", "2", "--engine.enforce_eager", "true",
             "--engine.deadline", "9", "--engine.gpu_memory_utilization", "0.5",
             "--device", "cpu", "--nccl", "--engine-python", "./python"]  # fmt: skip
    monkeypatch.setattr(serving, "device_of", lambda name: "cuda")
    monkeypatch.setattr(serving_vllm, "gpu_count", lambda: 2)
    assert main(["serve", "calculator", "--engine", "Vllm", *words]) == 7
    output = capfd.readouterr()
    spec = json.loads(output.out)
    assert "exit code 3" in output.err
    assert (spec["listen"], spec["max_num_seqs"], spec["kv_cache_tokens"]) == ("0.0.0.0:7000", 9, 640)
    assert (spec["tensor_parallel_size"], spec["enforce_eager"], spec["deadline"]) == (2, True, 9.0)
    assert spec["gpu_memory_utilization"] == 0.5
    assert (spec["tls_key_file"], spec["secret_file"]) == (str(tmp_path / "key.pem"), str(tmp_path / "secret"))
    assert spec["model"] == "calculator" and spec["nccl"] and not spec["socket"]


HOLDER = """
import json, os, subprocess, sys
words = [str(os.getpid()) if word == "PARENT" else word for word in json.loads(sys.argv[1])]
child = subprocess.Popen(words, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a stopped process with its parent")
def test_a_replica_that_is_stopped_while_it_imports_ends_with_its_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    words = [
        word if word != "0" else "PARENT" for word in command(ReplicaProgram(settings=PLACED, module="imports"), 0)
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, json.dumps(words)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    os.kill(pid, signal.SIGSTOP)
    holder.kill()
    holder.wait(SECONDS)
    holder.stdout.close()
    try:
        wait_until_gone([pid])
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
