"""The examples of a run under Slurm and on Kubernetes: their syntax, and each command line in them."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from groupwise.cluster.check_launch import check_launch
from groupwise.commands.parsing import options_of, parse, parser
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions
from groupwise.engines import Served, TlsAddress

yaml = pytest.importorskip("yaml")

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
ADDRESS = f"gpu-1:7000#sha256={'0' * 64}"
VALUES = {
    "MODEL": "calculator", "RECIPE": "", "RANKS": "2", "ADDRESSES": f"'{ADDRESS}', ", "HOSTS": "--engine-host gpu-1",
    "FINGERPRINT": "0" * 64, "ENGINES": "8",
}  # fmt: skip
"""What the variables of the examples may hold. The recipe is the packaged one."""


def with_values(text: str) -> str:
    return re.sub(r"\$[({]?(\w+)[)}]?", lambda match: VALUES[match[1]], text)


def slurm_commands() -> list[list[str]]:
    """The words of each groupwise command of the batch script."""
    script = (CLUSTER / "slurm.sh").read_text().replace("\\\n", " ")
    lines = re.findall(r"^\s*(?:srun .*?)?(groupwise .*?)(?: >.*)?$", script, re.M)
    return [shlex.split(with_values(line)) for line in lines]


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()))


def pods() -> list[dict[str, Any]]:
    return [d["spec"]["template"]["spec"] for d in documents() if "template" in d["spec"]]


def kubernetes_commands() -> list[list[str]]:
    return [[with_values(word) for word in container["command"]] for pod in pods() for container in pod["containers"]]


@pytest.mark.parametrize("commands", [slurm_commands, kubernetes_commands])
def test_each_command_is_one_of_ours(commands: Any) -> None:
    words = commands()
    assert [line[:2] for line in words] == [["groupwise", "serve"], ["groupwise", "train"]]
    table, options = parser()
    served, _ = parse(table, options, words[0][1:])
    assert served.model == "calculator" and served.listen.startswith("0.0.0.0:") and served.tls_key_file
    given, overrides = parse(table, options, [word for word in words[1][1:] if word not in ("", "recipe.toml")])
    start = starting_point(None, overrides)
    recipe = read_recipe(start.source, start.overrides)
    check_launch(recipe)
    assert recipe.cluster.launch == "external" and isinstance(recipe.engine, Served) and recipe.engine.addresses
    options_of(Permissions, given).engines.allow(str(TlsAddress.parse(text).host) for text in recipe.engine.addresses)


def test_the_batch_script_is_bash() -> None:
    subprocess.run(["bash", "-n", CLUSTER / "slurm.sh"], check=True)
    head = (CLUSTER / "slurm.sh").read_text().splitlines()
    assert head[0] == "#!/bin/bash" and any(line.startswith("#SBATCH --nodes=") for line in head)


def test_the_manifest_has_the_keys_that_kubernetes_requires() -> None:
    found = {d["kind"]: d for d in documents()}
    assert set(found) == {"Service", "StatefulSet", "Job"}
    assert all(d["apiVersion"] and d["metadata"]["name"] for d in found.values())
    service, engines = found["Service"]["spec"], found["StatefulSet"]["spec"]
    labels = engines["template"]["metadata"]["labels"]
    assert service["selector"] == engines["selector"]["matchLabels"] == labels and service["clusterIP"] == "None"
    assert engines["serviceName"] == found["Service"]["metadata"]["name"]
    for pod in pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["image"] and {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        if "key" in volumes:
            assert volumes["key"]["secret"]["defaultMode"] == 0o400
    assert found["Job"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    names = [f"{engines['serviceName']}-{i}.{engines['serviceName']}" for i in range(engines["replicas"])]
    learner = " ".join(found["Job"]["spec"]["template"]["spec"]["containers"][0]["command"])
    assert re.findall(r"[\w.-]+(?=:7000#)", learner) == names
