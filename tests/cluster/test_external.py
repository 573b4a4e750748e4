"""Engines and ranks that others have started: what each process reads, what is refused, and two real processes."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.cluster import network_interface
from groupwise.cluster.check_launch import check_launch
from groupwise.cluster.external import ExternalProcesses, ExternalRank
from groupwise.cluster.network_interface import INTERFACES, interface, interface_towards, use_interface_towards
from groupwise.config.recipe import Cluster, Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import MissingRequirement, Usage, WorkerLost
from groupwise.engines import Served
from groupwise.learner import rank_pulse
from groupwise.learner.distributed import ConnectionClosed
from groupwise.learner.rank_pulse import STORE, Pulse, RankPulse, RankWait, SilentRanks, pulse_key
from groupwise.learner.rank_store import (
    ASKS,
    CALL,
    Store,
    call_ranks,
    host_store,
    join_store,
    release_ranks,
    wait_for_call,
)
from groupwise.runs.run_layout import RunLayout
from groupwise.training import rank_worker
from groupwise.training.rank_worker import named_by, rank_store
from tests.processes import PATIENCE
from tests.training.test_follower import SMALL as SETTINGS
from tests.training.test_follower import files

SMALL: dict[str, Any] = {**SETTINGS, "cluster.launch": "external", "cluster.ranks": 2}
VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7001"}
ADDRESS = f"gpu-1:7000#sha256={'0' * 64}"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RANK": "", "MASTER_PORT": ""}, "lacks RANK, MASTER_PORT"),
        ({"RANK": "two"}, "is no number"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, and cluster.ranks is 2"),
        ({"RANK": "2"}, "RANK is 2 of 2"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
    ],
)
def test_wrong_variables_of_a_rank_are_refused(wrong: dict[str, str], message: str) -> None:
    assert ExternalRank.read(2, VARIABLES) == ExternalRank(1, "127.0.0.1", 7001)
    with pytest.raises(Usage, match=message) as caught:
        ExternalRank.read(2, VARIABLES | wrong)
    assert caught.value.fix


def recipe(launch: str, ranks: int = 1, **settings: Any) -> Recipe:
    cluster = Cluster(launch=launch, ranks=ranks)  # type: ignore[arg-type]
    return Recipe(method=gw.grpo(), cluster=cluster, **settings)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (recipe("external"), "no addresses of engines, and one rank"),
        (recipe("external", engine=Served(addresses=(ADDRESS,))), "would start 2 engines itself"),
        (recipe("ray"), "nothing to start"),
    ],
)
def test_a_launcher_without_work_is_refused(recipe: Recipe, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.cluster.check_launch.library", lambda: None)
    with pytest.raises(Usage, match=message) as caught:
        check_launch(recipe)
    assert caught.value.fix


def test_launchers_with_work_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.cluster.check_launch.library", lambda: None)
    served = Served(replicas=0, addresses=(ADDRESS,))
    for good in (recipe("local"), recipe("external", engine=served), recipe("external", 2),
                 recipe("ray", engine=Served()),
                 recipe("ray", 2)):  # fmt: skip
        check_launch(good)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_external_ranks_follow_no_phases(
    rank: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 would wait for the others, which follow one run only."""
    for name, value in (VARIABLES | {"RANK": rank}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    cluster, phases = (
        'cluster = { launch = "external", ranks = 2 }',
        '[[phase]]\nname = "first"\n[[phase]]\nname = "second"',
    )
    Path("two.toml").write_text(f'method = "gspo"\n{cluster}\n{phases}\n')
    assert main(["train", "two.toml"]) == 2
    assert "this recipe has phases" in capsys.readouterr().err


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingRequirement, match="Ray is not installed") as caught:
        gw.train(engine=Served(), out=tmp_path, **SETTINGS, **{"cluster.launch": "ray"})
    assert "groupwise[ray]" in caught.value.fix and not [*tmp_path.iterdir()]


def test_an_unknown_launcher() -> None:
    with pytest.raises(Usage, match="launch"):
        gw.train(**{"cluster.launch": "slurm"})


def test_the_interface_towards_this_host_is_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo, nccl = INTERFACES
    for variable in INTERFACES:
        monkeypatch.delenv(variable, raising=False)
    assert interface("127.0.0.1") in ("lo", "lo0")
    with interface_towards("127.0.0.1"):
        assert os.environ[gloo] == os.environ[nccl] == interface("127.0.0.1")
    assert not {*INTERFACES} & {*os.environ}
    monkeypatch.setenv(gloo, "eth7")
    with interface_towards("127.0.0.1"):
        assert (os.environ[gloo], os.environ[nccl]) == ("eth7", interface("127.0.0.1"))
    assert os.environ[gloo] == "eth7" and nccl not in os.environ


def test_the_interface_towards_the_own_name_is_that_towards_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts has the own name at 127.0.1.1, where no other host reaches a rank."""
    known = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth1": "10.0.0.7"}
    towards = {"a": "127.0.1.1", "b": "10.0.0.7", "localhost": "127.0.0.1", "192.0.2.1": "10.0.0.7"}
    monkeypatch.setattr(network_interface.socket, "if_nameindex", lambda: [*enumerate([*known, "tunnel"])])
    monkeypatch.setattr(network_interface, "address_of", lambda name: known.get(name, ""))
    monkeypatch.setattr(network_interface, "source_address", lambda host: towards.get(host, ""))
    names = {host: interface(host) for host in (*towards, "unknown")}
    assert names == {"a": "eth1", "b": "eth1", "localhost": "lo", "192.0.2.1": "eth1", "unknown": ""}
    del towards["192.0.2.1"]
    assert interface("a") == "docker0", "there is no default route"
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert interface("a") == "lo", "all ranks are on this host"


def test_nccl_uses_the_interface_towards_the_engines_until_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    towards = {"b": "eth1", "c": "eth1", "d": "eth2"}
    monkeypatch.setattr(network_interface, "interface", lambda host: towards.get(host, ""))
    monkeypatch.setenv(variable := INTERFACES[1], "")  # so that it is restored
    monkeypatch.delenv(variable)
    for hosts, evidence in ((["b", "d"], "b: eth1, d: eth2"), (["b", "::1"], "b: eth1, ::1: none is known")):
        with pytest.raises(Usage, match="one interface towards the engines") as caught:
            use_interface_towards(hosts)
        assert caught.value.evidence == evidence and f"{variable}=NAME" in caught.value.fix
    use_interface_towards([])
    assert variable not in os.environ
    use_interface_towards(["b", "c"])
    assert os.environ[variable] == "eth1"
    use_interface_towards(["d"])
    with interface_towards("127.0.0.1"):
        assert os.environ[variable] == "eth1"


def test_an_external_rank_has_the_gpu_of_its_number_on_its_host() -> None:
    rank = ExternalRank(rank=9, store_host="gpu-1", store_port=7001)
    assert rank.device("cuda", 8, {"LOCAL_RANK": "1"}) == "cuda:1"
    assert rank.device("cuda:2", 1, {"LOCAL_RANK": "1"}) == rank.device("cuda", 1, {}) == "cuda:0"
    assert rank.device("cpu", 0, {"LOCAL_RANK": "1"}) == "cpu"
    assert replace(rank, rank=0).device("cuda:2", 8, {"LOCAL_RANK": "1"}) == "cuda:2"
    for environment in ({}, {"LOCAL_RANK": "two"}):
        with pytest.raises(Usage, match="rank 9 sees 8 GPUs") as caught:
            rank.device("cuda", 8, environment)
        assert "LOCAL_RANK" in caught.value.fix and "CUDA_VISIBLE_DEVICES" in caught.value.fix


def test_an_address_that_rank_0_cannot_have_and_a_rank_0_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Usage, match="cannot listen"):
            host_store(2, "127.0.0.1", port)
    with pytest.raises(WorkerLost, match=r"rank 0 is not at .*, after 0\.5 s"):
        join_store(port, 2, deadline=0.5)


def test_an_external_rank_that_was_not_started_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pretended clock: each look at the ranks takes four seconds."""
    times = itertools.count(0.0, 4.0)
    clock = SimpleNamespace(monotonic=lambda: next(times), sleep=lambda seconds: None)
    monkeypatch.setattr("groupwise.cluster.processes.time", clock)
    lines: list[str] = []
    with (
        ExternalProcesses(["rank 1", "rank 2"]) as processes,
        pytest.raises(WorkerLost, match="rank 2: not ready") as caught,
    ):
        processes.wait_for(lambda: ["rank 2"], 30.0, lines.append)
    assert "with its RANK" in caught.value.fix
    (line,) = lines
    assert line.startswith("waiting for rank 2, up to 30 s: start it")


def test_a_closed_connection_of_external_ranks_is_that_of_the_rank_without_a_pulse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 2 has died. Rank 1 has ended because of that, and its pulse tells."""
    monkeypatch.setattr("groupwise.training.rank_worker.GRACE", 0.0)
    monkeypatch.setattr(rank_pulse, "LEAST_STILL", 0.0)
    store = host_store(3)
    for rank in (1, 2):
        store.set(pulse_key(rank), Pulse(9, 5, "a sum", f"gpu-{rank}", left=rank == 1).text())
    with RankPulse(store, 0, 3, 1.0) as pulse:
        processes = ExternalProcesses(["rank 1", "rank 2"], pulse)
        pulse.waiting = RankWait((), "a sum")
        lost = ConnectionClosed("rank 0 waited for another rank, which is gone: a sum", evidence="closed", fix="resume")
        lines = str(named_by(processes, lost)).splitlines()
        known = SilentRanks("rank 0 waited for rank 2, which gives no sign of life: a sum", evidence="closed", fix="")
        assert named_by(processes, known).what == known.what
    assert lines[0].endswith("rank 2 was lost: it gives no sign of life") and lines[3] == "  do:   resume"
    assert lines[2].strip() == lost.what
    assert lines[1].startswith("  seen: rank 2 is on host gpu-2, and gave no sign of life for ")
    assert named_by(ExternalProcesses(["rank 2"]), WorkerLost("late", evidence="closed")).evidence == "closed"


def test_a_closed_connection_of_external_ranks_whose_store_is_closed_is_that_of_the_store() -> None:
    """Rank 0 has died, or its torchrun."""
    store = host_store(2)
    with RankPulse(join_store(store.port, 2, deadline=PATIENCE), 1, 2, PATIENCE) as pulse:
        store.wait([pulse_key(1)])
        del store
        lost = ConnectionClosed("rank 1 waited for rank 0, which is gone: a sum", evidence="closed", fix="resume")
        error = named_by(ExternalProcesses(["rank 0"], pulse), lost)
    assert error.what == f"{STORE} was lost: it gives no sign of life" and lost.what in error.evidence


@pytest.mark.parametrize("error", [None, WorkerLost("rank 1 is lost")], ids=["ends", "fails"])
def test_the_port_of_rank_0_is_free_after_its_context(
    error: WorkerLost | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A report or an export may follow, and the ranks above 0 must not wait meanwhile. Its caller keeps an error."""
    port = free_port()
    for name, value in (VARIABLES | {"RANK": "0", "MASTER_PORT": port}).items():
        monkeypatch.setenv(name, value)
    kept: list[WorkerLost] = []
    try:
        with rank_store(resolved(recipe("external", 2)), RunLayout(tmp_path)) as meeting:
            assert meeting
            join_store(int(port), 2, deadline=PATIENCE).wait([pulse_key(0)])
            if error:
                raise error
    except WorkerLost as caught:
        kept.append(caught)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE).close()
    assert meeting and meeting.pulse, "the rendezvous may live longer"


def test_the_error_of_a_rank_above_0_names_the_address_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise SilentRanks("rank 0 gave no sign of life for 8 s", evidence="the network is cut", fix="resume")

    store = host_store(2)
    for name, value in (VARIABLES | {"MASTER_PORT": str(store.port)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_worker, "join", lost)
    with pytest.raises(WorkerLost, match="no sign of life") as caught:
        rank_worker.follow_external(resolved(recipe("external", 2)), UserCode())
    assert caught.value.evidence == f"the network is cut\nrank 0 is at 127.0.0.1:{store.port}"


def test_a_rank_above_0_is_no_run_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Usage, match="only rank 0 samples and writes"):
        gw.train(out=tmp_path, **SMALL)


def command(words: list[str], rank: int, port: str) -> "subprocess.Popen[str]":
    """A rank as Slurm starts it."""
    variables = VARIABLES | {"RANK": str(rank), "MASTER_PORT": port}
    words = [sys.executable, "-m", "groupwise", *words]
    return subprocess.Popen(
        words, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def torchrun(words: list[str], restarts: int = 0) -> "subprocess.Popen[str]":
    """Two ranks as torchrun starts them."""
    start = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts), "-m", "groupwise"]
    words = [sys.executable, "-m", *start, *words]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rank_1_of(agent: "subprocess.Popen[str]") -> int:
    """The process id of rank 1, which an agent of torchrun has started."""
    children = [pid for file in Path(f"/proc/{agent.pid}/task").glob("*/children") for pid in file.read_text().split()]
    return next(int(pid) for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())


def overrides(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The files of a run in one process."""
    return files(gw.train(out=tmp_path_factory.mktemp("one"), **SETTINGS).directory)


def test_two_ranks_started_by_hand_have_the_bits_of_one(
    one: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 0 is this process."""
    port = free_port()
    other = command(["train", *overrides(SMALL)], 1, port)
    for name, value in (VARIABLES | {"RANK": "0", "MASTER_PORT": port}).items():
        monkeypatch.setenv(name, value)
    two = gw.train(out=tmp_path / "two", **SMALL)
    output, _ = other.communicate(timeout=PATIENCE)
    assert other.returncode == 0, output
    assert files(two.directory) == one


def test_two_ranks_of_torchrun_have_the_bits_of_one(one: tuple[bytes, bytes], tmp_path: Path) -> None:
    agent = torchrun(["train", "--out", str(tmp_path), *overrides(SMALL)])
    output, _ = agent.communicate(timeout=PATIENCE)
    assert agent.returncode == 0, output
    (run,) = tmp_path.iterdir()
    assert files(run) == one


@pytest.mark.kill
def test_torchrun_continues_the_run_of_a_killed_rank(one: tuple[bytes, bytes], tmp_path: Path) -> None:
    """A second start resumes the run of the first one; without another start, the command fails."""
    for restarts in (1, 0):
        out, lines = tmp_path / str(restarts), []
        agent = torchrun(["train", "--out", str(out), *overrides(SMALL)], restarts)
        assert agent.stdout
        for line in agent.stdout:
            lines.append(line)
            if line.startswith("1/3"):
                os.kill(rank_1_of(agent), signal.SIGKILL)
        assert agent.wait(PATIENCE) == (0 if restarts else 1), lines
        (run,) = out.iterdir()
        assert not restarts or files(run) == one


def stores_of_a_start(port: int) -> list[Store]:
    """The stores of two ranks that torchrun's agent at a port has started together."""
    ranks = [ExternalRank(rank, "127.0.0.1", port, agent=True) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(lambda rank: rank.store(2, PATIENCE), ranks)]


def test_a_restart_finds_the_run_of_an_earlier_start_and_no_other_key_of_it(tmp_path: Path) -> None:
    """The environment does not say on all hosts how many starts there were."""
    agent = host_store(2)
    rank = ExternalRank(0, "127.0.0.1", agent.port, agent=True)
    assert rank.recorded_run(2, PATIENCE) is None
    rank.record_run(tmp_path, 2, PATIENCE)
    zero, one = stores_of_a_start(agent.port)
    call_ranks(zero)
    assert wait_for_call(one) and rank.recorded_run(2, PATIENCE) == tmp_path
    zero, one = stores_of_a_start(agent.port)
    assert not zero.check([CALL]) and not one.check([CALL])
    release_ranks(zero)
    assert not wait_for_call(one), "rank 0 has ended, and the agent's store has not"


def test_a_start_waits_for_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that was ended before it had its answer does not count as one of the next start."""
    agent = host_store(2)
    agent.set(f"{ASKS}/1", "a process that is gone")
    monkeypatch.setattr("groupwise.cluster.external.START", timedelta(seconds=0.1))
    with pytest.raises(WorkerLost, match=r"rank 1: not ready after 0\.1 s"):
        ExternalRank(0, "127.0.0.1", agent.port, agent=True).store(2, PATIENCE)
    monkeypatch.undo()
    zero, one = stores_of_a_start(agent.port)
    call_ranks(zero)
    assert wait_for_call(one)


@pytest.mark.kill
def test_an_external_rank_ends_when_rank_0_is_silent(tmp_path: Path) -> None:
    """A stopped rank 0 does not answer, and its connections stay open: as if its host had vanished."""
    words = ["train", "--out", str(tmp_path), *overrides(SMALL | {"cluster.deadline": 20.0})]
    port = free_port()
    first, second = (command(words, rank, port) for rank in range(2))
    assert first.stdout
    try:
        next(line for line in first.stdout if line.startswith("1/3"))
        first.send_signal(signal.SIGSTOP)
        output, _ = second.communicate(timeout=PATIENCE)
        assert second.returncode == WorkerLost.code and "rank 0" in output, output
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


@pytest.mark.kill
def test_an_external_rank_that_is_killed_ends_the_run_which_two_others_resume(
    one: tuple[bytes, bytes], tmp_path: Path
) -> None:
    """Real commands for both ranks, and an engine with an address."""
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    served = subprocess.Popen(
        [sys.executable, "-m", "groupwise", "serve", "calculator", "--listen", "127.0.0.1:0",
         "--dtype", SMALL["machine.dtype"], "--secret-file", str(tmp_path / "secret")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert served.stdout
    address = served.stdout.readline().split("served at ")[1].partition(";")[0]
    engine = f"{{ kind = 'Served', replicas = 0, addresses = ['{address}'] }}"
    secret = ["--engine-secret", str(tmp_path / "secret")]
    try:
        words = ["train", "--out", str(tmp_path / "runs"), "--engine", engine, *secret, *overrides(SMALL)]
        port = free_port()
        first, second = (command(words, rank, port) for rank in range(2))
        assert first.stdout
        lines = []
        for line in first.stdout:
            lines.append(line)
            if line.startswith("1/3"):
                second.send_signal(signal.SIGKILL)
        assert first.wait(PATIENCE) == 7 and "rank 1" in "".join(lines), lines
        (run,) = (tmp_path / "runs").iterdir()
        again = [command(["resume", str(run), *secret], rank, port) for rank in range(2)]
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in again]
        assert [process.returncode for process in again] == [0, 0], outputs
        assert files(run) == one
    finally:
        served.kill()
        served.wait()
