"""The programs in examples/agents: their pinned packages, which the page of packages names, too."""

import json
import re

import pytest
from tools.agent_environments import AGENTS, python_agents, requirements

PAGE = (AGENTS.parents[1] / "docs" / "agents-packages.md").read_text()


def test_each_program_names_one_version_and_the_page_has_it() -> None:
    for agent in python_agents():
        packages = requirements(agent.read_text())
        assert packages and all(re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\d.]+", package) for package in packages), agent
        assert all(f"| `{package}` | `{agent.name}` |" in PAGE for package in packages), (agent, packages)
    ((name, version),) = json.loads((AGENTS / "node" / "package.json").read_text())["dependencies"].items()
    assert f"| `{name} {version}` | `examples/agents/node/agent.js` |" in PAGE


def test_a_program_without_packages_is_an_error() -> None:
    with pytest.raises(ValueError, match="names no packages"):
        requirements("import openai\n")
