"""The page of two hosts: each command has a mark, and those that ran on CPUs run again, on two pretended hosts."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.pretended_hosts import obstacle, two_hosts
from tests.docs.test_pages import HOME, blocks
from tests.examples.test_cluster import recipe_of

PAGE = "docs/two-hosts.md"
MARKS = ("run here", "run by hand", "rehearsed", "not run")
ON_CPUS = {
    "MODEL": "calculator", " --engine Vllm --engine-python .venv-vllm/bin/python": "", "--replicas 8": "--replicas 2",
    "--device cuda --dtype": "--device cpu --dtype", "= 8 ]": "= 2 ]", "--machine.device cuda": "--machine.device cpu",
    "--cluster.ranks 8": "--cluster.ranks 2", "--nproc-per-node 8": "--nproc-per-node 1",
    "--cluster.ranks 16": "--cluster.ranks 2", "--engine-host c": "--engine-host b",
}  # fmt: skip
"""The words of the page for GPUs, and those for two processes on CPUs."""
RECIPE = """
task = "calculator"
prompts = 2
iterations = 2
sampling.max_tokens = 12
evaluate.problems = 2
method = { base = "grpo", group_size = 4 }
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A command of the page: the hosts on which it is started, its text and its mark."""

    hosts: Sequence[str]
    text: str
    mark: str


def lines() -> list[Line]:
    found = []
    for block in blocks(PAGE):
        head, _, body = block.text.partition("\n")
        hosts = re.fullmatch(r"# on (\w)(?: and (\w))?", head)
        assert hosts, f"{head!r} names no host"
        for line in re.sub(r"\\\n\s*", "", body).splitlines():
            text, _, mark = line.rpartition("  # ")
            found.append(Line([name for name in hosts.groups() if name], text.strip(), mark))
    return found


def on_cpus(text: str) -> str:
    for word, other in ON_CPUS.items():
        text = re.sub(re.escape(word) + r"(?!\w)", other, text)
    return text


def test_each_command_has_a_mark() -> None:
    assert {line.mark for line in lines()} <= {*MARKS}
    assert len(lines()) >= 9 and sum(line.mark == "run here" for line in lines()) >= 8


def test_every_word_for_cpus_stands_in_place_of_one_on_the_page() -> None:
    for word in ON_CPUS:
        assert any(re.search(re.escape(word) + r"(?!\w)", line.text) for line in lines()), word
    assert not any("cuda" in on_cpus(line.text) for line in lines() if line.mark == "run here")


@pytest.mark.parametrize("page", [PAGE, "docs/cluster.md"])
def test_the_commands_for_gpus_are_accepted_on_a_host_with_eight(page: str) -> None:
    text = re.sub(r"\\\n\s*", "", (HOME / page).read_text())
    commands = re.findall(r"groupwise (train [^`]*?--machine\.device cuda.*?)(?:  #.*)?$", text, re.M)
    assert len(commands) >= 2
    engine = next(iter(re.findall(r'^engine="(.*batch_invariant.*?)"', text, re.M)), "")
    for command in commands:
        host = re.search(r"--engine-host (\w+)", command)
        address = f"'{host[1]}:7000#sha256={'0' * 64}'" if host else ""
        recipe_of(shlex.split(command.replace("$engine", engine.replace("$addresses", address))), gpus=8)


@pytest.mark.hosts
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_the_commands_that_ran_on_cpus_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with two_hosts(tmp_path / "logs", delay=0.01) as (a, b, _):
        shells = {"a": a.shell(tmp_path), "b": b.shell(tmp_path)}
        for line in lines():
            if line.mark == "run here":
                begun = [(shells[host], shells[host].begin(on_cpus(line.text))) for host in line.hosts]
                for shell, mark in begun:
                    shell.end(mark)
    alone, together = sorted((tmp_path / "runs").iterdir())
    assert (alone / "metrics.jsonl").read_bytes() == (together / "metrics.jsonl").read_bytes()
    assert (alone / "model" / "model.safetensors").is_file()
