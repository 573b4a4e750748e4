"""Runs over two pretended hosts by torchrun, with engines on one of them: a bad network, a cut, kills and stops."""

import re
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.core import WorkerLost
from groupwise.runs.run_layout import RunLayout
from tests.cluster.pretended_hosts import Command, Host, obstacle, two_hosts
from tests.processes import PATIENCE, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600), pytest.mark.skipif(bool(obstacle()), reason=obstacle())]

ITERATIONS = 6
SMALL: dict[str, Any] = {
    "iterations": ITERATIONS, "prompts": 2, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 2, "save.every": 1, "cluster.reduction_lanes": 2, "cluster.deadline": 20.0,
}  # fmt: skip
RANKS = {**SMALL, "cluster.launch": "external", "cluster.ranks": 2}


def files(run: Path) -> tuple[bytes, bytes]:
    """The last checkpoint's tensors, and the metrics."""
    layout = RunLayout(run)
    return (layout.checkpoint(ITERATIONS) / "tensors.safetensors").read_bytes(), layout.metrics.read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The files of an undisturbed run in one process."""
    return files(gw.train(out=tmp_path_factory.mktemp("alone"), **SMALL).directory)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that both hosts see, with a secret."""
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


def options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def torchrun(host: Host, place: Path, *words: str, restarts: int = 0) -> Command:
    """Start torchrun on one of two hosts, with one rank."""
    start = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "a:29400"]
    start += ["--max-restarts", str(restarts), "-m", "groupwise"]
    return host.start("python", "-m", "torch.distributed.run", *start, *words, directory=place)


def serve(host: Host, place: Path, replicas: int) -> tuple[Command, list[str]]:
    """Start engines on a host. Returns the command, and the options of a run that uses them."""
    words = ["--replicas", str(replicas), "--listen", "0.0.0.0:7000", "--secret-file", "secret", "--key", "key.pem"]
    command = host.start("groupwise", "serve", "calculator", *words, directory=place)
    wait_until(lambda: command.ended or command.output.count("is served at") == replicas, "the engines listen")
    addresses = re.findall(r"is served at (\S+);", command.output)
    assert len(addresses) == replicas, command.output
    engine = f"{{ kind = 'Served', replicas = 0, deadline = 5.0, addresses = {addresses} }}"
    return command, ["--engine", engine, "--engine-host", host.name, "--engine-secret", "secret"]


def the_run(place: Path) -> Path:
    (run,) = (place / "runs").iterdir()
    return run


def test_ranks_on_two_hosts_and_engines_on_one_have_the_bits_of_one_process(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    """Over a network that takes 10 ms and loses one packet in a hundred."""
    with two_hosts(place / "logs", delay=0.01, loss=0.01) as (a, b, cable):
        _, engines = serve(b, place, 2)
        words = ["train", *options(RANKS), *engines]
        commands = [torchrun(host, place, *words) for host in (a, b)]
        assert [command.wait(5 * PATIENCE) for command in commands] == [0, 0], [each.output for each in commands]
        assert cable.lost > 10
    assert files(the_run(place)) == alone


def test_a_trainer_goes_on_when_the_cable_to_its_engines_is_mended(alone: tuple[bytes, bytes], place: Path) -> None:
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        _, engines = serve(b, place, 1)
        trainer = a.start("groupwise", "train", *options(SMALL), *engines, directory=place)
        trainer.wait_for("1/6")
        cable.cut()
        trainer.wait_for("b:7000 is lost")
        cable.mend()
        assert trainer.wait(PATIENCE) == 0, trainer.output
    assert files(the_run(place)) == alone


def test_a_cut_cable_to_the_engines_ends_the_run_with_their_host_and_another_one_resumes_it(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        served, engines = serve(b, place, 1)
        trainer = a.start("groupwise", "train", *options(SMALL), *engines, directory=place)
        trainer.wait_for("1/6")
        cable.cut()
        assert trainer.wait(PATIENCE) == WorkerLost.code
        assert "b:7000" in trainer.output and "groupwise resume" in trainer.output
        cable.mend()
        served.process.kill()
        resumed = a.start("groupwise", "resume", str(the_run(place)), *engines[2:], directory=place)
        assert resumed.wait(PATIENCE) == 0, resumed.output
    assert files(the_run(place)) == alone
