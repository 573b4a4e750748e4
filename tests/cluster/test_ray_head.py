"""The head of a Ray cluster dies: the run goes on until its engines end, ends itself, and is resumed without Ray."""

import os
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
DRIVER = """
import os, signal, sys, time
import groupwise as gw
from groupwise.core import GroupwiseError
from groupwise.engines import Served
from tests.cluster.test_ray import processes
from tests.cluster.test_ray_head import SMALL

def kill(run, line):
    if line["iteration"] == 2:
        os.kill(int(sys.argv[2]), signal.SIGKILL)
    if line["iteration"] == 3:
        time.sleep(70)  # Ray itself would have ended this process after 60 seconds
        for engine in processes():
            os.kill(engine, signal.SIGKILL)

try:
    gw.train(out=sys.argv[1], engine=Served(restarts=1), on_iteration=kill, **SMALL, **{"cluster.launch": "ray"})
except GroupwiseError as error:
    print(error)
    sys.exit(error.code)
"""


@pytest.fixture
def head() -> Iterator[Any]:
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": MEMORY}
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
