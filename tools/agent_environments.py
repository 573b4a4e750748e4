"""Make the environments of the agents in examples/agents: python -m tools.agent_environments [.venv-agents].

A Python agent names its packages in its first lines (PEP 723), the Node agent in its package.json. An environment whose
packages are those is kept.
"""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

AGENTS = Path(__file__).parents[1] / "examples" / "agents"


def requirements(source: str) -> list[str]:
    """The packages that a script names in its first lines (PEP 723).

    >>> requirements('# /// script\\n# dependencies = ["openai==3.57.0"]\\n# ///\\n')
    ['openai==3.57.0']
    """
    block = re.search(r"(?m)^# /// script\n((?:#.*\n)+?)# ///$", source)
    if block is None:
        raise ValueError("the script names no packages: it needs a block # /// script")
    return tomllib.loads(re.sub(r"(?m)^# ?", "", block[1]))["dependencies"]


def python_agents() -> Iterator[Path]:
    """The agents that are Python scripts."""
    yield from sorted(AGENTS.glob("*.py"))


def main(directory: str = ".venv-agents") -> None:
    """Make what is missing, with this interpreter and npm."""
    for agent in python_agents():
        make_python(Path(directory, agent.stem), requirements(agent.read_text()))
    make_node(Path(directory, "node"), AGENTS / "node")


def make_python(environment: Path, packages: Sequence[str]) -> None:
    """A virtual environment with these packages. Its list of them is written last: a half-made one is made again."""
    mark, wanted = environment / "requirements.txt", "\n".join(packages)
    if mark.exists() and mark.read_text() == wanted:
        return
    print(f"installing {' '.join(packages)} into {environment}", flush=True)
    venv.create(environment, clear=True, with_pip=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    if any(package.startswith("openenv") for package in packages):
        init = [Path(python).absolute(), "-m", "openenv.cli", "init", "echo_env"]
        subprocess.run(init, check=True, cwd=environment, stdout=subprocess.DEVNULL)
    mark.write_text(wanted)


def make_node(environment: Path, project: Path) -> None:
    """A copy of a Node project with its packages."""
    if (environment / "node_modules").exists() and not any(
        (environment / file.name).read_bytes() != file.read_bytes() for file in project.glob("package.json")
    ):
        return
    print(f"installing the packages of {project / 'package.json'} into {environment}", flush=True)
    shutil.rmtree(environment, ignore_errors=True)
    shutil.copytree(project, environment, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], check=True, cwd=environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
