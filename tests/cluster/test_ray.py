"""Runs on a Ray cluster of two nodes, which are processes of this machine: the bits of a local run, through kills.

`make test-ray` runs them in an environment that has Ray.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.cluster import ray as launcher
from groupwise.core import Usage, WorkerLost
from groupwise.data import Generation, GenerationRequest
from groupwise.engines import EngineAccess, Served, Vllm
from groupwise.engines.remote import engine_slots as engine_places
from groupwise.engines.remote.replica import ReplicaProgram, ReplicaSettings
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON
from groupwise.learner import ReplicatedRanks
from groupwise.models import find_model
from tests.cluster.ray_processes import processes
from tests.engines.test_vllm import children
from tests.processes import wait_until_gone

pytestmark = pytest.mark.ray

SMALL: dict[str, Any] = {
    "iterations": 2, "prompts": 4, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 4, "save.every": 1, "cluster.reduction_lanes": 2, "cluster.deadline": 60.0,
}  # fmt: skip
RAY = {"cluster.launch": "ray"}
PYTHON = Path(DEFAULT_PYTHON).absolute()
MEMORY = 100 << 20
"""Bytes of each node's object store, which stays empty."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs. The first has no driver yet: each run connects by RAY_ADDRESS."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": MEMORY}
    node["_system_config"] = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(autouse=True)
def nothing_left(cluster: Any) -> Iterator[None]:
    """After each test, no process of a run is left, and all resources are free again."""
    import ray

    yield
    wait_until_gone([*processes()])
    until = time.monotonic() + 30
    while ray.is_initialized() and ray.available_resources().get("CPU") != 4:
        assert time.monotonic() < until, ray.available_resources()
        time.sleep(0.1)


def trained(run: gw.Run) -> dict[str, bytes]:
    """Metrics, samples and the model of a run."""
    kinds = ("samples/*", "model/*model.safetensors")
    names = sorted(str(path.relative_to(run.directory)) for kind in kinds for path in run.directory.glob(kind))
    names.append("metrics.jsonl")
    return {name: (run.directory / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the run with everything in one process."""
    return trained(gw.train(out=tmp_path_factory.mktemp("local"), **SMALL))


def test_a_run_has_the_bits_of_a_local_one_though_an_actor_and_an_engine_are_killed_while_they_sample(
    local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groupwise.cluster.ray_replicas import RayReplica

    monkeypatch.setattr(engine_places, "PAUSE", 0.0)
    sample, counts, pids, hosts = RayReplica.sample, [0], set[int](), set[str]()

    async def disturbed(self: RayReplica, request: GenerationRequest) -> Generation:
        counts[0] += 1
        pids.update(processes())
        hosts.update(node for node in self.bundles.ray.util.placement_group_table(self.bundles.group)[
            "bundles_to_node_id"].values())  # fmt: skip
        if counts[0] in (10, 30):
            engine, actor = next(iter(processes().items()))
            os.kill(actor if counts[0] == 10 else engine, signal.SIGKILL)
        return await sample(self, request)

    monkeypatch.setattr(RayReplica, "sample", disturbed)
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    run = gw.train(
        out=tmp_path / "runs",
        engine=Served(max_restarts=20),
        permissions=gw.Permissions(engine_exchange=exchange),
        **SMALL,
        **RAY,
    )
    assert trained(run) == local
    assert counts[0] > 30 and len(pids) >= 4 and len(hosts) == 2
    wait_until_gone(sorted(pids))


def test_engines_on_nodes_sample_with_the_adapter_that_the_learner_trains(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    base = shutil.copytree(find_model("calculator"), tmp_path / "base")
    recipe = SMALL | {"model": str(base), "lora.rank": 2}
    local = gw.train(out=tmp_path / "local", **recipe)
    placed = gw.train(out=tmp_path / "placed", engine=Served(), **recipe, **RAY)
    assert trained(placed) == trained(local) and "model/adapter_model.safetensors" in trained(local)


def test_a_run_has_the_bits_of_a_local_one_though_an_engine_and_an_actor_are_stopped_and_a_node_dies(
    cluster: Any, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP leaves connections open. The node dies with all processes on it, while its engine samples."""
    import ray

    from groupwise.cluster import ray as ray_nodes
    from groupwise.cluster.ray_replicas import RayReplica

    monkeypatch.setattr(engine_places, "PAUSE", 0.0)
    monkeypatch.setattr(ray_nodes, "ENDED", 1.0)
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    sample, counts, stopped = RayReplica.sample, [0], list[int]()

    def disturb() -> None:
        """Stop an engine, later the actor of another one, and at last kill the node."""
        running = [pair for pair in processes().items() if not {*pair} & {*stopped}]
        if counts[0] >= 10 * (2 * len(stopped) + 1) and len(stopped) < 2 and running:
            stopped.append(running[0][len(stopped)])
            os.kill(stopped[-1], signal.SIGSTOP)
        if counts[0] == 42:  # the run has 44 requests, and those that are sent again
            cluster.remove_node(node, allow_graceful=False)

    async def disturbed(self: RayReplica, request: GenerationRequest) -> Generation:
        counts[0] += 1
        disturb()
        return await sample(self, request)

    monkeypatch.setattr(RayReplica, "sample", disturbed)
    engine = Served(replicas=3, max_restarts=20, deadline=2.0)
    run = gw.train(out=tmp_path / "runs", engine=engine, **SMALL, **RAY)
    assert trained(run) == local
    assert counts[0] > 42 and len(stopped) == 2
    wait_until_gone(sorted(stopped))
    until = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) != 2:
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.skipif(not PYTHON.exists(), reason="needs vLLM: python -m tools.vllm_environment .venv-vllm")
@pytest.mark.timeout(600)
def test_vllm_on_nodes_gives_the_weights_of_a_local_run_though_an_engine_is_killed(
    local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old log-probs are recomputed by the learner, so equal tokens give equal weights."""
    from groupwise.cluster.ray_replicas import RayReplica

    monkeypatch.setattr(engine_places, "PAUSE", 0.0)
    sample, counts, pids = RayReplica.sample, [0], set[int]()

    async def disturbed(self: RayReplica, request: GenerationRequest) -> Generation:
        counts[0] += 1
        pids.update(child for pid in processes() for child in (pid, *children(pid)))
        if counts[0] == 20:
            os.kill(next(iter(processes())), signal.SIGKILL)
        return await sample(self, request)

    monkeypatch.setattr(RayReplica, "sample", disturbed)
    engine = Vllm(replicas=2, max_num_seqs=16, kv_cache_tokens=1 << 14)
    run = gw.train(
        out=tmp_path / "runs", engine=engine, permissions=gw.Permissions(engine_python=PYTHON), **SMALL, **RAY
    )
    assert trained(run)["model/model.safetensors"] == local["model/model.safetensors"]
    assert counts[0] > 20 and len(pids) >= 4  # each engine is two processes
    wait_until_gone(sorted(pids))


def test_ranks_on_nodes_have_the_bits_of_one_and_a_dead_one_is_named_with_its_end(
    local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trained(gw.train(out=tmp_path / "two", **SMALL, **RAY, **{"cluster.ranks": 2})) == local
    send, messages = ReplicatedRanks.send, [0]

    def killed(self: ReplicatedRanks, message: bytes, own: Sequence[bytes] = ()) -> None:
        messages[0] += 1
        if messages[0] == 3:
            (rank,) = processes()
            os.kill(rank, signal.SIGKILL)
        send(self, message, own)

    with monkeypatch.context() as patch:
        patch.setattr(ReplicatedRanks, "send", killed)
        with pytest.raises(WorkerLost, match="rank 1 was killed by SIGKILL") as caught:
            gw.train(out=tmp_path / "killed", **SMALL, **RAY, **{"cluster.ranks": 2})
    assert "gw.resume" in caught.value.fix
    (run,) = (tmp_path / "killed").iterdir()
    assert trained(gw.resume(run, ranks=1, launch="local")) == local


def test_a_stopped_rank_ends_the_run_at_its_deadline_and_a_stopped_actor_does_not(
    local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groupwise.cluster import ray as ray_nodes

    monkeypatch.setattr(ray_nodes, "ENDED", 1.0)
    send, messages, stopped = ReplicatedRanks.send, [0], list[int]()

    def disturbed(self: ReplicatedRanks, message: bytes, own: Sequence[bytes] = ()) -> None:
        messages[0] += 1
        if messages[0] in (3, 6):
            stopped.append(next(iter(processes().items()))[len(stopped)])
            os.kill(stopped[-1], signal.SIGSTOP)
        send(self, message, own)

    monkeypatch.setattr(ReplicatedRanks, "send", disturbed)
    recipe = SMALL | RAY | {"cluster.ranks": 2, "cluster.deadline": 20.0}
    with pytest.raises(WorkerLost, match="rank") as caught:
        gw.train(out=tmp_path / "rank", **recipe)
    assert "20 s" in str(caught.value) and "gw.resume" in caught.value.fix
    assert messages[0] == 3
    assert trained(gw.train(out=tmp_path / "actor", **recipe)) == local and len(stopped) == 2
    wait_until_gone(stopped)


def test_places_that_no_node_has_are_asked_for_until_a_deadline_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = launcher.hold

    def held(*arguments: Any) -> str:
        """Ray gets its time for the process that holds rank 0's CPUs, and little for the engines."""
        gpu = hold(*arguments)
        monkeypatch.setattr(launcher, "PLACED", 2.0)
        return gpu

    monkeypatch.setattr(launcher, "hold", held)
    with pytest.raises(Usage, match="Ray found no nodes for 2 engines within 2 s") as caught:
        gw.train(out=tmp_path, engine=Served(), **SMALL, **RAY, **{"machine.threads": 3})
    evidence = caught.value.evidence.splitlines()
    assert evidence[0] == "asked: 2 x 3 CPU" and evidence[-1] == "free on 2 nodes: 2 CPU"  # rank 0 has two
    assert [line.partition(": ")[2] for line in evidence[1:3]] == ["2 CPU", "2 CPU"]


def test_the_process_of_an_engine_sees_the_gpu_of_its_bundle_alone(cluster: Any) -> None:
    """The GPUs are a number that Ray was given."""
    import ray

    from groupwise.cluster.ray import Bundles, ProcessResources, connected

    node = cluster.add_node(num_cpus=0, num_gpus=2, object_store_memory=MEMORY)
    try:
        bundles = Bundles(connected(), "two engines", 2, ProcessResources(0, 1), "PACK")
        program = ["-c", "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"]
        actors = [bundles.start(i, program, {}) for i in range(2)]
        until = time.monotonic() + 60
        while not all(printed := [ray.get(actor.status.remote(), timeout=30)[1] for actor in actors]):
            assert time.monotonic() < until
        for actor in actors:
            bundles.end(actor)
        bundles.close()
    finally:
        cluster.remove_node(node)
    assert sorted(printed) == [["0"], ["1"]]


def test_the_last_lines_of_an_engine_that_does_not_start_are_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_places, "PAUSE", 0.0)

    def missing(self: Served, settings: ReplicaSettings, access: EngineAccess) -> ReplicaProgram:
        return ReplicaProgram(settings=settings, remote_module_arguments=("groupwise.no_such_module",))

    monkeypatch.setattr(Served, "program", missing)
    with pytest.raises(WorkerLost, match="no engine is left") as caught:
        gw.train(out=tmp_path, engine=Served(max_restarts=1), **SMALL, **RAY)
    assert "exit code 1" in caught.value.evidence and "No module named groupwise.no_such" in caught.value.evidence


DRIVER = """
import sys
import groupwise as gw
from groupwise.engines import Served
gw.train(out=sys.argv[1], engine=Served(), iterations=1000, **{"cluster.launch": "ray", "evaluate.problems": 4})
"""


def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 100
    while len(pids := [*processes()]) < 2:
        assert time.monotonic() < until and driver.poll() is None
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    wait_until_gone(pids)


def test_no_cluster_at_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Last, in a process of its own: this one is connected."""
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    command = [sys.executable, "-m", "groupwise", "train", "--out", str(tmp_path), "--engine.kind", "Served",
               "--cluster.launch", "ray"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "error: no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "ray start --head" in done.stderr and not [*tmp_path.iterdir()]
