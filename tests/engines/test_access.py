"""A recipe alone runs no interpreter, and sends nothing to another machine's engines: the command line names both."""

import json
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.commands import doctor
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import GroupwiseError, Usage
from groupwise.engines import EngineAccess, Served
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON
from groupwise.lifecycle.run_info import describe_run
from groupwise.runs.next_command import recorded_code, resume_call
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.write_run_info import write_info
from tests.checks import check
from tests.runs.infos import INFO

FINGERPRINT = "#sha256=" + "0" * 64
SMALL = ["--iterations", "1", "--prompts", "2", "--method.group_size", "4", "--method.minibatches", "1",
         "--evaluate.problems", "1", "--sampling.max_tokens", "8"]  # fmt: skip
WORDS = (
    "--engine-host gpu-1 --engine-host gpu-2 --engine-nccl gpu-2 --engine-python p --engine-secret s "
    "--engine-exchange /dev/shm"
)
ALLOWED = Permissions(
    engine_hosts=["gpu-1", "gpu-2"], engine_nccl=["gpu-2"], engine_python=Path("p"), engine_secret="s",
    engine_exchange="/dev/shm",
)  # fmt: skip


def canary(path: Path, touched: Path) -> Path:
    """A program that leaves a trace where it runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho ran > {touched}\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("addresses", "hosts", "missing"),
    [
        (["127.0.0.1:1", "localhost:1", "[::1]:1"], [], ""),
        (["gpu-1:1"], [], "--engine-host gpu-1"),
        (["gpu-1:1", "gpu-1:2", "10.0.0.1:1"], [], "--engine-host gpu-1 --engine-host 10.0.0.1"),
        (["gpu-1:1", "10.0.0.1:1"], ["gpu-1"], "--engine-host 10.0.0.1"),
        (["gpu-1:1", "[fd00::1]:1"], ["gpu-1", "fd00::1"], ""),
        (["gpu-1.evil:1"], ["gpu-1"], "--engine-host gpu-1.evil"),
        (["localhost.evil:1"], [], "--engine-host localhost.evil"),
        (["0.0.0.0:1"], [], "--engine-host 0.0.0.0"),
    ],
)
def test_hosts_of_engines_are_named_on_the_command_line(
    addresses: list[str], hosts: list[str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPWISE_SECRET", "s" * 32)
    served = Served(replicas=0, addresses=tuple(address + FINGERPRINT for address in addresses))
    assert served.notices == (f"engines: {', '.join(addresses)} get prompts and weights",)
    access = EngineAccess(hosts=tuple(hosts))
    if not missing:
        assert served.secret(access) == b"s" * 32
        return
    with pytest.raises(Usage, match="would send prompts and weights to engines on") as caught:
        served.secret(access)
    assert caught.value.fix.endswith(f"add {missing} to the command")


def test_a_host_is_named_without_a_port() -> None:
    for host in ("gpu-1/x", "gpu 1", "", "a\x1b[2J"):
        with pytest.raises(Usage, match="is no host"):
            EngineAccess(hosts=(host or " ",))
    with pytest.raises(Usage, match="engine_hosts is one text"):
        Permissions(engine_hosts="gpu-1")


def test_nccl_is_permitted_only_to_hosts_that_get_weights() -> None:
    for host in ("gpu-2", "gpu-1.evil"):
        with pytest.raises(Usage, match=f"--engine-nccl {host}") as caught:
            EngineAccess(hosts=("gpu-1",), nccl_hosts=(host,))
        assert caught.value.fix.endswith(f"add --engine-host {host}")
    EngineAccess(hosts=("gpu-1",), nccl_hosts=("gpu-1", "localhost"))
    with pytest.raises(Usage, match="engine_nccl is one text"):
        Permissions(engine_hosts=["gpu-1"], engine_nccl="gpu-1")


@pytest.mark.parametrize("value", ["", "/etc"])
@pytest.mark.parametrize("kind", ["Served", "Vllm"])
@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("python", "--engine-python"),
        ("secret_file", "--engine-secret"),
        ("exchange", "--engine-exchange"),
        ("nccl", "--engine-nccl"),
    ],
)
def test_a_recipe_cannot_name_them(kind: str, key: str, word: str, value: str) -> None:
    with pytest.raises(Usage, match=rf"recipe.engine: {key} is not a field") as caught:
        read_recipe(f"method = 'grpo'\nengine = {{ kind = '{kind}', {key} = '{value}' }}")
    assert caught.value.fix == f"use the command-line option {word}"


def test_check_names_the_engines_and_runs_no_interpreter(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = home / "ran"
    program = canary(home / DEFAULT_PYTHON, ran)
    words = ["--engine", '{ kind = "Vllm", addresses = ["one.sock"] }']
    assert main(["check", *words]) == 2
    assert f"add --engine-python {DEFAULT_PYTHON} to the command" in capsys.readouterr().out and not ran.exists()
    assert main(["train", *SMALL, *words]) == 2 and not ran.exists() and not Path("runs").exists()
    assert main(["check", *words, "--engine-python", str(program)]) == 4 and ran.exists()
    notes: list[str] = []
    assert not check(None, [("engine", '{ kind = "Served", addresses = ["one.sock"] }')], None, notes.append)
    assert "engines: one.sock get prompts and weights" in notes


def test_the_doctor_only_looks(home: Path) -> None:
    assert not doctor.vllm().ok
    program = canary(home / DEFAULT_PYTHON, home / "ran")
    finding = doctor.vllm()
    assert finding.ok and f"--engine-python {DEFAULT_PYTHON}" in finding.observation and not (home / "ran").exists()
    assert not doctor.vllm(str(program)).ok and (home / "ran").exists()


def test_resume_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GROUPWISE_SECRET", "s" * 32)
    program = canary(tmp_path / "python", tmp_path / "ran")
    assert main(["train", *SMALL, "--save.every", "1", "--name", "foreign"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    recipe = RunLayout(run).recipe.read_text()
    again = ["resume", str(run), "--changed", "--iterations", "2"]
    for engine, fix in (
        ('kind = "Vllm"', f"--engine-python {DEFAULT_PYTHON}"),
        (f'kind = "Served"\naddresses = ["gpu-1:1{FINGERPRINT}"]', "--engine-host gpu-1"),
    ):
        RunLayout(run).recipe.write_text(recipe.replace('kind = "Native"', engine))
        capsys.readouterr()
        assert main(again) == 2 and f"add {fix}" in capsys.readouterr().err
    RunLayout(run).recipe.write_text(recipe.replace('kind = "Native"', 'kind = "Vllm"'))
    assert not (tmp_path / "ran").exists()
    assert main([*again, "--engine-python", str(program)]) == 4 and (tmp_path / "ran").exists()


def test_the_words_are_recorded_and_printed_again(tmp_path: Path) -> None:
    use = load_use(ALLOWED)
    assert use.options == f" {WORDS}"
    recipe = read_recipe("method = 'grpo'")
    identity = {name: getattr(INFO, name) for name in ("data", "recipe", "files", "templates")}
    info = describe_run(tmp_path.name, recipe, "grpo", use, "groupwise train", identity)
    write_info(RunLayout(tmp_path), info)
    info = RunInfo.read(RunLayout(tmp_path))
    assert (info.engine_hosts, info.engine_nccl) == (("gpu-1", "gpu-2"), ("gpu-2",))
    assert (info.engine_python, info.engine_secret) == ("p", "s")
    assert recorded_code(tmp_path) == (f" {WORDS}", ())
    permissions = 'engine_hosts=["gpu-1", "gpu-2"], engine_nccl=["gpu-2"], engine_python="p", engine_secret="s"'
    permissions += ', engine_exchange="/dev/shm"'
    assert resume_call(tmp_path) == f"gw.resume({json.dumps(str(tmp_path))}, permissions=gw.Permissions({permissions}))"


def test_the_library_has_the_same_words(home: Path) -> None:
    for call in (gw.train, gw.evaluate):
        program = canary(home / "python", home / call.__name__)
        given = {} if call is gw.train else {"model": "calculator"}
        with pytest.raises(GroupwiseError, match="the command names none"):
            call(**given, engine="Vllm")
        with pytest.raises(GroupwiseError, match="no environment of vLLM at"):
            call(**given, engine="Vllm", permissions=Permissions(engine_python=program))
        assert (home / call.__name__).exists()
