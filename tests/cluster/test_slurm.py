"""The batch script of the examples under Slurm itself, on two pretended hosts with two pretended GPUs each."""

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

import groupwise as gw
from tests.cluster.pretended_hosts import Host, obstacle, two_hosts
from tests.cluster.test_two_hosts import SMALL, files
from tests.processes import wait_until

missing = [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name)]
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(obstacle() or missing), reason=obstacle() or f"needs Slurm: {', '.join(missing)}"),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "cluster" / "slurm.sh"
GPUS = 2
SETTINGS = """
ClusterName=pretended
SlurmctldHost=a
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=a,b CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=a,b Default=YES MaxTime=INFINITE State=UP
"""


def slurm(folder: Path, hosts: tuple[Host, Host]) -> dict[str, str]:
    """Start Slurm on the hosts. Returns the environment of its commands."""
    (folder / "state").mkdir(parents=True)
    for gpu in range(GPUS):
        os.mknod(folder / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3 + gpu))  # a device, but no GPU
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, gpus=GPUS))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    Path("/run/munge").mkdir(exist_ok=True)
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    for host in hosts:
        host.run("mount", "-t", "tmpfs", "tmpfs", "/run/munge")
        names = {"key-file": "munge.key", **{f"{kind}-file": f"{host.name}.{kind}" for kind in ("pid", "log", "seed")}}
        host.run("munged", "--force", *(f"--{option}={folder / name}" for option, name in names.items()))
    hosts[0].start("slurmctld", "-D", directory=folder, environment=variables)
    for host in hosts:
        host.start("slurmd", "-D", "-N", host.name, directory=folder, environment=variables)
    return variables


def printed(host: Host, folder: Path, variables: Mapping[str, str], *command: str) -> str:
    """The output of a command of Slurm; empty if it fails."""
    words = host.words(command, folder)
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_the_batch_script_runs_under_slurm_with_the_bits_of_one_process(tmp_path: Path) -> None:
    """A rank for each of the first node's GPUs, and an engine for each of the second node's."""
    lines = [f"{name} = {value!r}" for name, value in SMALL.items() if name != "cluster.deadline"]
    (tmp_path / "recipe.toml").write_text("\n".join(lines).replace("'", '"') + "\n")
    with two_hosts(tmp_path / "logs", own_address="") as (a, b, _):
        variables = slurm(tmp_path / "slurm", (a, b))
        wait_until(
            lambda: printed(a, tmp_path, variables, "sinfo", "-h", "-o", "%D %T") == "2 idle\n", "nodes are idle"
        )
        resources = [f"--gpus-per-node={GPUS}", f"--ntasks-per-node={GPUS}", "--cpus-per-task=1"]
        submit = a.start("sbatch", "--wait", *resources, str(SCRIPT), directory=tmp_path, environment=variables)
        assert submit.wait() == 0, [path.read_text() for path in tmp_path.glob("slurm-*.out")]
    (run,) = (tmp_path / "runs").iterdir()
    alone = gw.train(tmp_path / "recipe.toml", out=tmp_path / "alone", **{"machine.dtype": "bfloat16"})
    assert files(run) == files(alone.directory)
    (log,) = tmp_path.glob("engine-*.log")
    assert log.name == "engine-b.log" and log.read_text().count("is served at b:") == GPUS
