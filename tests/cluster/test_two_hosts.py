"""Runs over two pretended hosts by torchrun, with engines on one of them: a bad network, a cut, kills and stops."""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.core import WorkerLost
from groupwise.learner.rank_pulse import STORE
from groupwise.runs.run_layout import RunLayout
from tests.cluster.pretended_hosts import Cable, Command, Host, obstacle, two_hosts
from tests.processes import wait_until, wait_until_gone

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


def torchrun(host: Host, place: Path, *words: str, restarts: int = 0, numbered: bool = False) -> Command:
    """Start torchrun on one of two hosts, with one rank. Its command may name the number of the host."""
    number = ["--master-addr", "a", "--master-port", "29400", "--node-rank", str("ab".index(host.name))]
    start = number if numbered else ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:29400"]
    start += ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts), "-m", "groupwise"]
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
        assert [command.wait() for command in commands] == [0, 0], [each.output for each in commands]
        assert cable.lost > 10
    assert files(the_run(place)) == alone


MACHINES = """
name = "core"
device_count = 2
memory_gib = 8.0
device_type = "cpu"
tflops = 0.001
memory_bandwidth_gb_s = 100.0
link_bandwidth_gb_s = 10.0
decode_step_overhead_ms = 0.001
host_count = 2
network_bandwidth_gb_s = 1.0
rates_source = "made up, so that two devices learn"
"""


def test_the_commands_that_a_plan_prints_start_its_split(place: Path) -> None:
    """Two sharded ranks on one host, two engines on the other: the bits of one process."""
    (place / "two.toml").write_text(MACHINES)
    settings = {**SMALL, "iterations": 2}
    with two_hosts(place / "logs", delay=0.01) as (a, b, _):
        planned = a.start("groupwise", "plan", "--machines", "two.toml", *options(settings), directory=place)
        assert planned.wait() == 0, planned.output
        assert "best: staleness 1, 2 generate, 2 learn" in planned.output, planned.output
        engines = re.findall("^  engines on the other host: (.*)$", planned.output, re.M)[-1]
        words = re.findall("^  started with: (.*)$", planned.output, re.M)[-1].replace("HOST", b.name)
        there, here = b.shell(place), a.shell(place)
        there.run(f"{engines} > engines.log 2>&1 &")
        there.run("until [ $(grep -c 'is served at' engines.log) = 2 ]; do sleep 0.1; done")
        here.run("addresses=$(sed -n \"s/.* is served at \\(.*\\); Ctrl-C ends/'\\1', /p\" engines.log)")
        here.run(f"groupwise train {shlex.join(options(settings))} {words}")
    alone, run = gw.train(out=place / "alone", **settings, **{"cluster.max_staleness": 1}).directory, the_run(place)
    for file in ("metrics.jsonl", "model/model.safetensors"):
        assert (run / file).read_bytes() == (alone / file).read_bytes(), file


def test_a_trainer_goes_on_when_the_cable_to_its_engines_is_mended(alone: tuple[bytes, bytes], place: Path) -> None:
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        _, engines = serve(b, place, 1)
        trainer = a.start("groupwise", "train", *options(SMALL), *engines, directory=place)
        trainer.wait_for("1/6")
        cable.cut()
        trainer.wait_for("b:7000 is lost")
        cable.mend()
        assert trainer.wait() == 0, trainer.output
    assert files(the_run(place)) == alone


def test_a_cut_cable_to_the_engines_ends_the_run_with_their_host_and_another_one_resumes_it(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        served, engines = serve(b, place, 1)
        trainer = a.start("groupwise", "train", *options(SMALL), *engines, directory=place)
        trainer.wait_for("1/6")
        cable.cut()
        assert trainer.wait() == WorkerLost.code
        assert "b:7000" in trainer.output and "groupwise resume" in trainer.output
        cable.mend()
        served.process.kill()
        resumed = a.start("groupwise", "resume", str(the_run(place)), *engines[2:], directory=place)
        assert resumed.wait() == 0, resumed.output
    assert files(the_run(place)) == alone


def test_weights_go_to_an_engine_on_another_host_by_sockets_in_the_place_of_nccl(place: Path) -> None:
    """The name of `a` means 127.0.1.1 there, as on Debian: the engine must get the address that it sees."""
    with two_hosts(place / "logs", delay=0.01) as (a, b, _):
        command = ("python", "-m", "tests.cluster.nccl_by_sockets")
        paths = (str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")]))
        here = {"PYTHONPATH": os.pathsep.join(paths)}
        b.start(*command, "engine", str(place / "address"), directory=place, environment=here)
        trainer = a.start(*command, "trainer", str(place / "address"), directory=place, environment=here)
        assert trainer.wait() == 0, trainer.output
        assert "both versions came over" in trainer.output and "over lo" not in trainer.output


def test_a_host_passes_weights_on_to_another_one(place: Path) -> None:
    """The trainer sends them once. The engines have different certificates."""
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        paths = (str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")]))
        here, addresses = {"PYTHONPATH": os.pathsep.join(paths)}, list[str]()
        for host in (b, a):
            (directory := place / host.name).mkdir()
            words = ("python", "-m", "tests.engines.receiving_engine", str(directory), "0.0.0.0")
            command = host.start(*words, directory=place, environment=here)
            command.wait_for("\n")
            addresses.append(command.output.strip())
        trainer = a.start(
            "python", "-m", "tests.cluster.pass_between_hosts", *addresses, directory=place, environment=here
        )
        assert trainer.wait() == 0, trainer.output
        names = [address.partition("#")[0] for address in addresses]
        assert f"{names[0]} passed weights on to {names[1]}" in trainer.output and names[0].startswith("b:")
        assert cable.carried > 10


@contextmanager
def two_ranks(
    place: Path, restarts: int = 0, numbered: bool = False
) -> Iterator[tuple[Host, Host, Cable, Command, Command]]:
    """Two hosts with a run of a rank on each, after its first iteration."""
    with two_hosts(place / "logs", delay=0.01) as (a, b, cable):
        words = ["train", *options(RANKS)]
        first, second = (torchrun(host, place, *words, restarts=restarts, numbered=numbered) for host in (a, b))
        first.wait_for(f"1/{ITERATIONS}")
        yield a, b, cable, first, second


def resumed_on_one_rank(place: Path) -> tuple[bytes, bytes]:
    return files(gw.resume(the_run(place), ranks=1, launch="local").directory)


def test_a_cut_cable_ends_both_ranks_with_the_names_of_the_hosts_and_they_resume(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    """The torchrun of host b ends when Linux gives up its connection: here at the next packet."""
    with two_ranks(place) as (a, b, cable, first, second):
        cable.cut()
        assert first.wait() != 0
        assert "rank 0 waited for rank 1, which did not answer within 20 s" in first.output
        assert "rank 1 is on host b" in first.output and "groupwise resume" in first.output
        second.wait_for("rank 0 is at a:")
        assert f"{STORE} gave no sign of life for 20 s" in second.output
        b.run("sysctl", "--write", "net.ipv4.tcp_retries2=1")
        assert second.wait() != 0
        cable.mend()
        again = [torchrun(host, place, "resume", str(the_run(place))) for host in (a, b)]
        assert [command.wait() for command in again] == [0, 0], [command.output for command in again]
    assert files(the_run(place)) == alone


def test_torchrun_of_a_numbered_host_ends_with_its_rank_after_a_cut(place: Path) -> None:
    with two_ranks(place, numbered=True) as (_, _, cable, first, second):
        cable.cut()
        assert first.wait() != 0 and second.wait() != 0
        assert "rank 1 is on host b" in first.output and "rank 0 is at a:" in second.output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_killed_or_stopped_rank_ends_torchrun_on_both_hosts(
    number: signal.Signals, alone: tuple[bytes, bytes], place: Path
) -> None:
    with two_ranks(place) as (_, b, _, first, second):
        os.kill(b.rank(1), number)
        assert first.wait() != 0 and second.wait() != 0
        assert "rank 0 waited for rank 1" in first.output and "rank 1 is on host b" in first.output, first.output
    assert resumed_on_one_rank(place) == alone


@pytest.mark.parametrize("numbered", [False, True], ids=["c10d", "numbered"])
def test_torchrun_starts_the_ranks_of_both_hosts_again(numbered: bool, alone: tuple[bytes, bytes], place: Path) -> None:
    with two_ranks(place, restarts=1, numbered=numbered) as (_, b, _, first, second):
        os.kill(b.rank(1), signal.SIGKILL)
        assert (first.wait(), second.wait()) == (0, 0), first.output + second.output
    assert files(the_run(place)) == alone


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_run_ends_without_the_torchrun_of_another_host(
    number: signal.Signals, alone: tuple[bytes, bytes], place: Path
) -> None:
    """The torchrun of host a, which has their store, then waits five minutes for the other one."""
    with two_ranks(place) as (_, b, _, first, _):
        os.kill(b.agent(), number)
        first.wait_for("done: ")
    assert files(the_run(place)) == alone


def test_the_ranks_of_both_hosts_end_with_the_torchrun_that_has_their_store(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    with two_ranks(place) as (a, b, _, first, second):
        ranks = a.rank(0), b.rank(1)
        os.kill(a.agent(), signal.SIGKILL)
        wait_until_gone(ranks)
        first.wait_for(f"rank 0 waited for {STORE}, which gives no sign of life")
        assert second.wait() != 0
    assert resumed_on_one_rank(place) == alone


def test_a_host_without_power_ends_the_run_which_the_other_host_resumes(
    alone: tuple[bytes, bytes], place: Path
) -> None:
    with two_ranks(place) as (_, b, cable, first, _):
        cable.cut()
        b.power_off()
        assert first.wait() != 0 and "rank 1 is on host b" in first.output
    assert resumed_on_one_rank(place) == alone
