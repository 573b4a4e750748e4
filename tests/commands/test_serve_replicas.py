"""`groupwise serve --replicas`: the words of each engine's process, and the processes until they end."""

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.commands import serve_replicas
from groupwise.commands.parsing import options_of, parse, parser
from groupwise.commands.serve_native import ServeOptions
from groupwise.commands.serve_replicas import all_ended, one_of, serve_words
from groupwise.core import Usage, WorkerLost
from groupwise.engines.remote.replica_devices import visible_device

OPTIONS = ServeOptions(
    socket="", listen="0.0.0.0:7000", secret_file="secret", tls_key_file="key.pem", dtype="bfloat16", device="cuda",
    seed=3, threads=2, max_num_seqs=8, kv_cache_tokens=64, replicas=3, nccl=True,
)  # fmt: skip


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
    words = serve_words("--model", engine, "Vllm", "bin/python")
    given, _ = parse(table, options, words[words.index("serve") :])
    assert options_of(ServeOptions, given) == engine
    assert (given.model, given.engine, given.engine_python) == ("--model", "Vllm", "bin/python")


def test_more_engines_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    monkeypatch.setattr(serve_replicas, "gpu_count", lambda: 2)
    options = replace(OPTIONS, secret_file=str(secret), tls_key_file="", nccl=False)
    with pytest.raises(Usage, match="--replicas is 3, and this host has 2 GPUs"):
        serve_replicas.serve_replicas("calculator", options, "Native", "")


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
