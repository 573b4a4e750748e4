"""The head of a Ray cluster, or its host, is lost: the run ends with its engines, and is resumed without Ray."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.core import WorkerLost
from tests.cluster.test_ray import MEMORY, trained

pytestmark = pytest.mark.ray

SECONDS = 300.0
SMALL: dict[str, Any] = {
    "iterations": 8, "prompts": 4, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 4, "evaluate.every": 0, "save.every": 1, "seed": 3,
}  # fmt: skip
RANKS: dict[str, Any] = {**SMALL, "cluster.ranks": 2, "cluster.deadline": 20.0}
"""A run that samples in its own process, and has a second rank."""
DRIVER = """
import os, signal, sys, time
import groupwise as gw
from groupwise.core import GroupwiseError
from groupwise.engines import Served
from tests.cluster.ray_processes import processes
from tests.cluster.test_ray_head import SMALL

def kill(run, line):
    if line["iteration"] == 2:
        os.kill(int(sys.argv[2]), signal.SIGKILL)
    if line["iteration"] == 3:
        time.sleep(70)  # Ray itself would have ended this process after 60 seconds
        for engine in processes():
            os.kill(engine, signal.SIGKILL)

try:
    gw.train(out=sys.argv[1], engine=Served(max_restarts=1), on_iteration=kill, **SMALL, **{"cluster.launch": "ray"})
except GroupwiseError as error:
    print(error)
    sys.exit(error.code)
"""


@pytest.fixture
def head() -> Iterator[Any]:
    """A cluster of one node, with a CPU for rank 0 and for each of two engines."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 3, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster
    cluster.shutdown()


def test_a_run_outlives_the_head_ends_with_its_engines_and_is_resumed_without_ray(head: Any, tmp_path: Path) -> None:
    (gcs,) = head.head_node.all_processes["gcs_server"]
    environment = {**os.environ, "RAY_ADDRESS": head.address}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "runs"), str(gcs.process.pid)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == WorkerLost.code, done.stdout + done.stderr
    assert "the head of the Ray cluster" in done.stdout + done.stderr and "gw.resume" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    resumed = gw.resume(run, launch="local")
    assert trained(resumed) == trained(gw.train(out=tmp_path / "local", **SMALL))


RANKS_DRIVER = """
import os, signal, sys
import groupwise as gw
from tests.cluster.test_ray_head import RANKS

def kill(run, line):
    if line["iteration"] == 2:
        os.kill(int(sys.argv[2]), signal.SIGKILL)

gw.train(out=sys.argv[1], on_iteration=kill, **RANKS, **{"cluster.launch": "ray"})
"""


def test_a_run_with_ranks_outlives_the_head(head: Any, tmp_path: Path) -> None:
    """Gradients go over connections of the ranks. The end of the run does not wait for Ray."""
    (gcs,) = head.head_node.all_processes["gcs_server"]
    environment = {**os.environ, "RAY_ADDRESS": head.address}
    command = [sys.executable, "-c", RANKS_DRIVER, str(tmp_path / "runs"), str(gcs.process.pid)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert trained(gw.Run(run)) == trained(gw.train(out=tmp_path / "local", **RANKS))


ACCOUNTS = """
import time
from groupwise.cluster import ray as nodes
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import Usage

def free(name):
    return ray.available_resources().get(name, 0)

ray = nodes.connected()
recipe = read_recipe("cluster.launch = 'ray'\\nmethod = 'grpo'\\nmachine.device = 'cuda:1'\\nmachine.threads = 3")
with nodes.reserved(recipe):
    while free("GPU") != 1 or free("CPU"):  # for a moment, the other GPU was held too
        time.sleep(0.1)
    engine = nodes.Bundles(ray, "an engine", 1, nodes.ProcessResources(0, 1), "PACK")
    shown = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    actor = engine.start(0, ["-c", shown], {})
    while not (lines := ray.get(actor.status.remote(), timeout=60)[1]):
        time.sleep(0.1)
    print("an engine has GPU", *lines)
    nodes.PLACED = 2.0
    try:
        with nodes.reserved(recipe):
            print("one GPU for two runs")
    except Usage as error:
        print(error.what)
    engine.end(actor)
    engine.close()
while free("GPU") != 2 or free("CPU") != 2:
    time.sleep(0.1)
print("all is free")
"""


def test_rank_0_has_its_cpus_and_its_gpu_in_the_accounts_of_ray(tmp_path: Path) -> None:
    """The GPUs are a number that Ray was given. Rank 0 has the second, and an engine gets the first."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | {
        "RAY_ADDRESS": cluster.address
    }
    try:
        command = [sys.executable, "-c", ACCOUNTS]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    finally:
        cluster.shutdown()
    lines = done.stdout.splitlines()
    assert lines == ["an engine has GPU 0", "Ray has no 2 CPU on this node for rank 0 within 2 s", "all is free"], (
        done.stdout + done.stderr
    )


HOSTS = """
set -e
trap 'for host in $HEAD $OTHER; do ip netns pids $host | xargs -r kill -9; ip netns del $host; done' EXIT
ip netns add $HEAD; ip netns add $OTHER
ip link add head netns $HEAD type veth peer name other netns $OTHER
ip -n $HEAD addr add 10.9.0.1/24 dev head; ip -n $OTHER addr add 10.9.0.2/24 dev other
for host in $HEAD $OTHER; do ip -n $host link set lo up; done
ip -n $HEAD link set head up; ip -n $OTHER link set other up
node="--object-store-memory $MEMORY --disable-usage-stats"
ip netns exec $HEAD $RAY start --head --port 6379 --node-ip-address 10.9.0.1 --num-cpus 2 \
    --include-dashboard false --temp-dir $TEMPORARY $node
ip netns exec $OTHER unshare --pid --fork --mount-proc bash -ec '
$RAY start --address 10.9.0.1:6379 --node-ip-address 10.9.0.2 --num-cpus 0 '"$node"'
RAY_ADDRESS=10.9.0.1:6379 exec $PYTHON -c "$DRIVER" $RUNS $LOST'
"""
"""Two hosts: one of the head and the engines or the second rank, one of the run.

They are network namespaces. The second one is a namespace of processes, too: Ray finds a host's node by its process.
"""
CUT = """
import subprocess, sys
import groupwise as gw
from groupwise.core import GroupwiseError
from groupwise.engines import Served
from tests.cluster.test_ray_head import RANKS, SMALL

def cut(run, line):
    if line["iteration"] == 2:
        subprocess.run(["ip", "link", "set", "other", "down"], check=True)

recipe = RANKS if sys.argv[2] == "ranks" else SMALL | {"engine": Served(max_restarts=1, deadline=20.0)}
try:
    gw.train(out=sys.argv[1], on_iteration=cut, **recipe, **{"cluster.launch": "ray"})
except GroupwiseError as error:
    print(error)
    sys.exit(error.code)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip, for network namespaces")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("lost", "recipe"), [("engines", SMALL), ("ranks", RANKS)])
def test_a_run_whose_head_is_on_a_lost_host_names_it_and_is_resumed_without_ray(
    lost: str, recipe: dict[str, Any], tmp_path: Path
) -> None:
    """Its host answers nothing any more, and closes no connection. All engines, or the second rank, are there, too."""
    ray = Path(sys.executable).with_name("ray")
    words = {"HEAD": f"head-{os.getpid()}", "OTHER": f"other-{os.getpid()}", "MEMORY": str(MEMORY), "DRIVER": CUT}
    words |= {"RAY": str(ray), "PYTHON": sys.executable, "RUNS": str(tmp_path / "runs"), "LOST": lost}
    words |= {"TEMPORARY": f"/tmp/head-{os.getpid()}"}
    done = subprocess.run(
        ["bash", "-c", HOSTS], env={**os.environ, **words}, capture_output=True, text=True, timeout=SECONDS
    )
    shutil.rmtree(words["TEMPORARY"], ignore_errors=True)
    assert done.returncode == WorkerLost.code, done.stdout + done.stderr
    assert "the head of the Ray cluster, 10.9.0.1:6379, does not answer" in done.stdout and "gw.resume" in done.stdout
    assert (lost == "ranks") == ("rank 1 was lost" in done.stdout)
    (run,) = (tmp_path / "runs").iterdir()
    assert trained(gw.resume(run, launch="local")) == trained(gw.train(out=tmp_path / "local", **recipe))
