"""The examples of a run under Slurm and on Kubernetes: each command in them, what it starts, and Kubernetes' schema."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from groupwise.checks.check_machine import check_batch_invariance, check_machine
from groupwise.cluster.check_launch import check_launch
from groupwise.commands.parsing import options_of, parse, parser
from groupwise.commands.served_engine import served_engine
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions, UserCode
from groupwise.core import raise_all
from groupwise.engines import Native, Served, TlsAddress, Vllm
from tests.pretended_gpu import pretended_gpu
from tests.processes import wait_until_gone

yaml = pytest.importorskip("yaml")

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
SCHEMA = Path(__file__).with_name("kubernetes.schema.json")
FINGERPRINT = "0" * 64
HARDWARE = ("GPUs", "CPUs")

SRUN = """
import os, re, signal, subprocess, sys
first = next(i for i, word in enumerate(sys.argv) if i and not word.startswith("--"))
options, words = sys.argv[1:first], sys.argv[first:]
count = int(re.search(r"--ntasks=(\\d+)", " ".join(options))[1])
node = re.search(r"--nodelist=(\\S+)", " ".join(options))[1]
tasks = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURMD_NODENAME": node} for i in range(count)]
done = [subprocess.Popen(words, env={**os.environ, **task}) for task in tasks]
def end(number, frame):
    for process in done:
        process.terminate()
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, end)
raise SystemExit(max(process.wait() for process in done))
"""
"""A pretended srun: it starts the tasks of a step on this host, which end with it."""
GROUPWISE = f"""
import json, os, sys, time
from pathlib import Path
words, node = sys.argv[1:], os.environ.get("SLURMD_NODENAME", "")
task = {{name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR") if name in os.environ}}
name = f"{{words[0]}}-{{node}}-{{task.get('RANK', '0')}}.json"
Path(os.environ["SEEN"], name).write_text(json.dumps([words, task]))
if words[0] == "serve" and node == os.environ.get("BROKEN"):
    raise SystemExit("error: no engine here")
if words[0] == "serve":
    Path(os.environ["SEEN"], f"{{node}}.pid").write_text(str(os.getpid()))
    for port in range(int(words[words.index("--replicas") + 1])):
        print(f"calculator is served at {{node}}:{{7000 + port}}#sha256={FINGERPRINT}; Ctrl-C ends", flush=True)
    time.sleep(600)
"""
"""A pretended groupwise: it writes its words and its variables to a file, and `serve` prints addresses."""


def programs(folder: Path) -> dict[str, str]:
    """The environment with the pretended programs."""
    folder.mkdir()
    texts = {"srun": SRUN, "groupwise": GROUPWISE, "scontrol": "print('node-1\\nnode-2\\nnode-3')"}
    for name, text in {**texts, "hostname": "print('10.0.0.1 172.17.0.1')"}.items():
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(folder), "HOME": str(folder)}


def recipe_of(words: list[str], gpus: int = 0) -> Recipe:
    """The recipe of a `train` command. An error if it is refused on a host with so many GPUs, or reaches a host that
    the command does not name.
    """
    table, options = parser()
    given, overrides = parse(table, options, [word for word in words if word != "recipe.toml"])
    start = starting_point(None, overrides)
    recipe = read_recipe(start.source, start.overrides)
    check_launch(recipe)
    with pretended_gpu(count=gpus) if gpus else nullcontext():
        raise_all([*check_batch_invariance(recipe), *check_machine(recipe, UserCode(), train=False).errors])
    addresses = recipe.engine.addresses if isinstance(recipe.engine, Served) else ()
    options_of(Permissions, given).engines.allow(str(TlsAddress.parse(text).host) for text in addresses)
    return recipe


@pytest.mark.parametrize("hardware", HARDWARE)
def test_the_batch_script_starts_a_rank_and_an_engine_for_each_gpu(hardware: str, tmp_path: Path) -> None:
    variables = programs(tmp_path / "bin") | {"SLURM_JOB_NODELIST": "node-[1-3]"}
    variables |= {"SLURM_GPUS_ON_NODE": "4"} if hardware == "GPUs" else {}
    done = subprocess.run(["bash", CLUSTER / "slurm.sh"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wait_until_gone(int(path.read_text()) for path in (tmp_path / "bin").glob("*.pid"))
    ranks, engines, dtype = (4, 4, "bfloat16") if hardware == "GPUs" else (2, 1, "float32")
    seen = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "bin").glob("*.json")}
    assert set(seen) == {"serve-node-2-0", "serve-node-3-0", *(f"train-node-1-{rank}" for rank in range(ranks))}
    table, options = parser()
    for node in (2, 3):
        served, words = parse(table, options, seen[f"serve-node-{node}-0"][0])
        assert (served.model, served.replicas, served.dtype) == ("calculator", engines, dtype)
        assert served.listen == "0.0.0.0:0" and served.tls_key_file and served.secret_file
        assert served_engine(words) == Native() and not served.engine_python
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    for rank in range(ranks):
        words, task = seen[f"train-node-1-{rank}"]
        recipe = recipe_of(words, gpus=4 if hardware == "GPUs" else 0)
        assert (recipe.cluster.launch, recipe.cluster.ranks, recipe.machine.dtype) == ("external", ranks, dtype)
        assert isinstance(recipe.engine, Served) and len(recipe.engine.addresses) == 2 * engines
        assert task == {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "10.0.0.1"}


VLLM = {"ENGINE": '{ kind = "Vllm", tensor_parallel_size = 2 }', "ENGINE_PYTHON": "/opt/vllm/bin/python"}


def test_the_batch_script_starts_engines_of_vllm(tmp_path: Path) -> None:
    """Its variables, as in its head."""
    head = re.sub(r"\\\n#\s*", "", (CLUSTER / "slurm.sh").read_text())
    (line,) = (line for line in head.splitlines() if line.startswith("#   ENGINE="))
    given = dict(word.split("=", 1) for word in shlex.split(line.removeprefix("#")) if "=" in word)
    assert given == VLLM | {"ENGINES": "4", "ENGINE_PYTHON": ".venv-vllm/bin/python"}
    variables = programs(tmp_path / "bin") | {"SLURM_JOB_NODELIST": "node-[1-3]", "SLURM_GPUS_ON_NODE": "8"} | given
    done = subprocess.run(["bash", CLUSTER / "slurm.sh"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table, options = parser()
    for node in (2, 3):
        words, _ = json.loads((tmp_path / "bin" / f"serve-node-{node}-0.json").read_text())
        served, overrides = parse(table, options, words)
        assert served_engine(overrides) == Vllm(tensor_parallel_size=2)
        assert (served.replicas, served.engine_python) == (4, given["ENGINE_PYTHON"])
    recipe = recipe_of(json.loads((tmp_path / "bin" / "train-node-1-0.json").read_text())[0], gpus=8)
    assert isinstance(recipe.engine, Served) and len(recipe.engine.addresses) == 2 * 4


def test_the_batch_script_ends_when_the_engines_of_a_node_do(tmp_path: Path) -> None:
    variables = programs(tmp_path / "bin") | {"SLURM_JOB_NODELIST": "node-[1-3]", "BROKEN": "node-3"}
    done = subprocess.run(["bash", CLUSTER / "slurm.sh"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 1 and "no engines on node-3:\nerror: no engine here" in done.stderr


def test_the_batch_script_asks_for_the_gpus_of_each_node() -> None:
    head = (CLUSTER / "slurm.sh").read_text().splitlines()
    assert head[0] == "#!/bin/bash"
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", "\n".join(head), re.M))
    assert options["gpus-per-node"] == options["ntasks-per-node"] == "8" and int(options["nodes"]) > 1


def documents(hardware: str) -> list[dict[str, Any]]:
    """The manifest, or what is left of it without GPUs, by the command in its head."""
    lines = (CLUSTER / "kubernetes.yaml").read_text().splitlines()
    assert "# Without GPUs: grep -v '# GPU$' examples/cluster/kubernetes.yaml | kubectl apply -f -" in lines
    kept = [line for line in lines if hardware == "GPUs" or not line.endswith("# GPU")]
    return list(yaml.safe_load_all("\n".join(kept)))


def pods(hardware: str) -> dict[str, dict[str, Any]]:
    """The specification of the pods, by the name of their container."""
    found = [d["spec"]["template"]["spec"] for d in documents(hardware) if "template" in d["spec"]]
    return {pod["containers"][0]["name"]: pod for pod in found}


@pytest.mark.parametrize("hardware", HARDWARE)
def test_the_manifest_fits_the_schema_of_kubernetes(hardware: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())

    def errors(document: dict[str, Any]) -> list[str]:
        (name,) = (name for name in schema["$defs"] if name.endswith(f".{document['kind']}"))
        validator = jsonschema.Draft202012Validator(schema | {"$ref": f"#/$defs/{name}"})
        return [error.message for error in validator.iter_errors(document)]

    for document in documents(hardware):
        assert errors(document) == [], document["kind"]
    job = documents(hardware)[2]
    container = job["spec"]["template"]["spec"]["containers"][0]
    for wrong in (
        {"comand": ["groupwise"]},
        {"workingDir": 3},
        {"resources": {"limit": {}}},
        {"env": [{"value": "8"}]},
    ):
        job["spec"]["template"]["spec"]["containers"] = [container | wrong]
        assert errors(job), wrong


@pytest.mark.parametrize("hardware", HARDWARE)
def test_the_manifest_starts_an_engine_for_each_gpu_and_a_learner_that_knows_them(
    hardware: str, tmp_path: Path
) -> None:
    found = {d["kind"]: d for d in documents(hardware)}
    service, engines = found["Service"]["spec"], found["StatefulSet"]["spec"]
    labels = engines["template"]["metadata"]["labels"]
    assert service["selector"] == engines["selector"]["matchLabels"] == labels and service["clusterIP"] == "None"
    assert engines["serviceName"] == found["Service"]["metadata"]["name"]
    containers = {name: pod["containers"][0] for name, pod in pods(hardware).items()}
    gpus = {name: each["resources"].get("limits", {}).get("nvidia.com/gpu", 0) for name, each in containers.items()}
    assert gpus == ({"engine": 1, "learner": 8} if hardware == "GPUs" else {"engine": 0, "learner": 0})
    table, options = parser()
    given = {each["name"]: each["value"] for each in containers["engine"]["env"] if "value" in each}
    for values, engine in ((given, Native()), (VLLM, Vllm(tensor_parallel_size=2))):
        command = containers["engine"]["command"]
        for name, value in values.items():
            command = [word.replace(f"$({name})", value) for word in command]  # as Kubernetes does
        served, words = parse(table, options, command[1:])
        assert served_engine(words) == engine and served.engine_python == values["ENGINE_PYTHON"]
    assert served.listen.startswith("0.0.0.0:") and served.dtype == ("bfloat16" if gpus["engine"] else "float32")
    plain = {each["name"]: each["value"] for each in containers["learner"]["env"] if "value" in each}
    variables = programs(tmp_path / "bin") | plain | {"FINGERPRINT": FINGERPRINT}
    subprocess.run(containers["learner"]["command"], env=variables, check=True)
    words, _ = json.loads((tmp_path / "bin" / "train--0.json").read_text())
    recipe = recipe_of(words, gpus=gpus["learner"])
    names = [f"{engines['serviceName']}-{i}.{engines['serviceName']}" for i in range(engines["replicas"])]
    assert isinstance(recipe.engine, Served)
    assert [str(TlsAddress.parse(text).host) for text in recipe.engine.addresses] == names
    assert recipe.cluster.ranks == max(gpus["learner"], 1) and recipe.cluster.sharded == bool(gpus["learner"])


@pytest.mark.parametrize("hardware", HARDWARE)
def test_each_volume_of_the_manifest_is_there_and_the_key_is_secret(hardware: str) -> None:
    for pod in pods(hardware).values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert container["image"] and {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        if "key" in volumes:
            assert volumes["key"]["secret"]["defaultMode"] == 0o400
    assert pods(hardware)["learner"]["restartPolicy"] == "Never"
