"""The example with a tool server: real processes that speak MCP. Needs `groupwise[mcp]`."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs groupwise[mcp]")

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Permissions, load_use
from groupwise.core import Usage
from groupwise.data import Outcome, Prompt, Verdict
from groupwise.environments import ToolUnavailable
from groupwise.training.build_environment import environment_of, tool_schemas

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp_tools" / "mcp_tools.py"
RECIPE = 'method = "gspo"\nenvironment = "mcp_tools:mcp_tools"'
ODD = """
import os, time
from mcp.server import MCPServer
server = MCPServer("odd")

@server.tool()
def sleep() -> str:
    time.sleep(60)

@server.tool()
def process() -> str:
    return str(os.getpid())

server.run()
"""


def call(expression: Any) -> str:
    value = f'"{expression}"' if isinstance(expression, str) else expression
    return f'<tool_call>{{"name": "calculate", "arguments": {{"expression": {value}}}}}</tool_call>'


@pytest.fixture(scope="module")
def use() -> Iterator[Any]:
    loaded = load_use(Permissions(use=[EXAMPLE]))
    yield loaded
    loaded.modules["mcp_tools"].SERVER.close()


@pytest.fixture(scope="module")
def example(use: Any) -> ModuleType:
    return use.modules["mcp_tools"]


@pytest.fixture
def odd(example: ModuleType, tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "odd.py").write_text(ODD)
    server = example.ToolServer(sys.executable, str(tmp_path / "odd.py"))
    yield server
    server.close()


def test_a_conversation_of_several_turns(use: Any) -> None:
    make = environment_of(read_recipe(RECIPE, use=use), use)
    assert make is not None

    async def talk() -> list[Any]:
        environment = make()
        await environment.reset(Prompt("p", (1,), "34*58+91="), Random(0))
        turns = (call("34*58+91"), call("2+"), call(5), call("2-3*4"), "#-10")
        return [await environment.step(turn) for turn in turns]

    right, faulty, number, second, end = asyncio.run(talk())
    assert right == "<tool_response>\n2063\n</tool_response>"
    assert right.counts == {"calls": 1, "malformed": 0, "errors": 0}
    assert "error: calculate: " in faulty and "not an expression" in faulty and faulty.counts["errors"] == 1
    assert "error: calculate: " in number and second == "<tool_response>\n-10\n</tool_response>" and end is None
    assert asyncio.run(talk())[0] == right  # another event loop, the same server


def test_the_schemas_are_the_servers(use: Any) -> None:
    (schema,) = tool_schemas(read_recipe(RECIPE, use=use), use)
    assert schema["function"]["name"] == "calculate" and "exactly" in schema["function"]["description"]
    assert schema["function"]["parameters"]["required"] == ["expression"]


def test_many_conversations_call_at_once(example: ModuleType) -> None:
    async def calls() -> list[str]:
        return await asyncio.gather(*(example.SERVER.call("calculate", expression=f"{i}*2") for i in range(50)))

    assert asyncio.run(calls()) == [str(2 * i) for i in range(50)]


def test_a_call_has_a_deadline(example: ModuleType, odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {tool.name for tool in odd.tools} == {"sleep", "process"}
    monkeypatch.setattr(example, "CALL", 0.2)
    with pytest.raises(ToolUnavailable, match=r"sleep: no answer within 0\.2 s"):
        asyncio.run(odd.call("sleep"))


def test_a_server_that_dies_starts_again(odd: Any) -> None:
    first = asyncio.run(odd.call("process"))
    os.kill(int(first), signal.SIGKILL)
    with pytest.raises(ToolUnavailable):
        asyncio.run(odd.call("process"))
    assert int(asyncio.run(odd.call("process"))) != int(first)


def test_a_lost_call_makes_the_sample_unverifiable(
    use: Any, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> str:
        raise ToolUnavailable("gone")

    monkeypatch.setattr(example.SERVER, "call", lost)
    make = environment_of(read_recipe(RECIPE, use=use), use)
    assert make is not None

    async def talk() -> Any:
        environment = make()
        await environment.reset(Prompt("p", (1,), "1+1="), Random(0))
        return await environment.step(call("1+1"))

    verdict = asyncio.run(talk())
    assert isinstance(verdict, Verdict) and verdict.outcome is Outcome.unverifiable and "gone" in verdict.cause


def test_a_server_that_does_not_start_is_refused_before_the_run(
    use: Any, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "START", 0.5)
    for program in ("import time; time.sleep(60)", "raise SystemExit(1)"):
        server = example.ToolServer(sys.executable, "-c", program)
        monkeypatch.setattr(example, "SERVER", server)
        with pytest.raises(Usage, match="the environment mcp_tools:mcp_tools cannot be created"):
            tool_schemas(read_recipe(RECIPE, use=use), use)
