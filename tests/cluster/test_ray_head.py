"""The head of a Ray cluster dies: the run ends itself, with its checkpoint, and is resumed without Ray."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.data import WorkerLost
from tests.cluster.test_ray import MEMORY, trained

pytestmark = pytest.mark.ray

SECONDS = 300.0
SMALL: dict[str, Any] = {
    "iterations": 40, "prompts": 4, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 4, "evaluate.every": 0, "save.every": 1, "seed": 3,
}  # fmt: skip
DRIVER = """
import os, signal, sys
import groupwise as gw
from groupwise.data import GroupwiseError
from groupwise.engines import Served
from tests.cluster.test_ray_head import SMALL

def kill(run, line):
    if line["iteration"] == 2:
        os.kill(int(sys.argv[2]), signal.SIGKILL)
    if line["iteration"] == 3:  # the nodes end some seconds after the head, and with them the engines
        import time
        time.sleep(30)

try:
    gw.train(out=sys.argv[1], engine=Served(restarts=1), on_iteration=kill, **SMALL, **{"cluster.launch": "ray"})
except GroupwiseError as error:
    print(error)
    sys.exit(error.code)
"""


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cluster whose nodes end five seconds after their head."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
        node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": MEMORY}
        cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster
    cluster.shutdown()


def test_a_run_whose_head_dies_ends_itself_and_is_resumed_without_ray(head: Any, tmp_path: Path) -> None:
    (gcs,) = head.head_node.all_processes["gcs_server"]
    environment = {**os.environ, "RAY_ADDRESS": head.address}
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "runs"), str(gcs.process.pid)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == WorkerLost.code, done.stdout + done.stderr
    assert "groupwise resume" in done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    resumed = gw.resume(run, launch="local")
    assert trained(resumed) == trained(gw.train(out=tmp_path / "local", **SMALL))
