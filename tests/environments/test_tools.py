"""Tool calls and their results: each call gets a result or an error, whatever the model writes."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Observation, Outcome, Prompt, ReplyWithCounts, Verdict
from groupwise.environments import (
    HermesFormat,
    PythonBlockFormat,
    Tools,
    ToolUnavailable,
    calculator_tools,
    python_tools,
    user_environment,
)
from groupwise.environments.tool_schemas import tool_schema
from groupwise.environments.tools import CALLS, SHOWN, calculate
from groupwise.sandbox import Sandbox
from tests.sandbox.boxes import needed

PROMPT = Prompt("p", (1,))


def observations(tools: Any, *messages: str) -> list[Observation]:
    async def go() -> list[Observation]:
        environment = user_environment(lambda: tools)()
        await environment.reset(PROMPT, Random(0))
        return [await environment.step(message) for message in messages]

    return asyncio.run(go())


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def sums(expression: str) -> str:
    return call('{"name": "calculate", "arguments": {"expression": "' + expression + '"}}')


def response(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def test_calls_get_results_and_a_turn_without_a_call_ends_the_conversation() -> None:
    first, several, last = observations(
        calculator_tools(), f"so {sums('37*48')}", sums("1+1") + "\n" + sums("2/8"), "1776"
    )
    assert first == response("1776")
    assert several == response("2") + "\n" + response("0.25")
    assert last is None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("<tool_call>{}", "a call stands between <tool_call> and </tool_call>"),
        ("</tool_call>", "a call stands between <tool_call> and </tool_call>"),
        (call("37*48"), "the call is not JSON (Extra data: line 1 column 3 (char 2))"),
        (call("[" * 100_000), "the call is not JSON"),
        (call("[]"), 'a call is an object such as {"name": ..., "arguments": {...}}'),
        (call('{"name": 7}'), "a call is an object such as"),
        (call('{"name": "calculate", "arguments": "1+1"}'), "the arguments of a call are an object"),
        (call('{"name": "add", "arguments": {}}'), "no tool is called 'add'; there is calculate"),
        (call('{"name": "calculate"}'), "calculate: missing a required argument: 'expression'"),
        (call('{"name": "calculate", "arguments": {"x": "1"}}'), "calculate: missing a required argument"),
        (call('{"name": "calculate", "arguments": {"expression": 7}}'), "calculate: expression is a text"),
        (sums("1/0"), "calculate: division by zero"),
        (sums("2**9"), "calculate: not an expression of numbers"),
        (sums("1+1") * (CALLS + 1), f"{CALLS + 1} calls in one turn, at most {CALLS}"),
    ],
)
def test_an_invalid_call_gets_an_error(message: str, error: str) -> None:
    (reply,) = observations(calculator_tools(), message)
    assert isinstance(reply, str) and reply.startswith("<tool_response>\nerror: ") and error in reply


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(12 + 3) * 4", "60"), ("-5 - -3", "-2"), ("2 - 3 - 4", "-5"), ("2+3*4", "14"), ("0.1+0.2", "0.3"), ("7/7", "1"),
     ("9" * 40 + "*1", "9" * 40), ("1e3", "1000")],
)  # fmt: skip
def test_values_of_the_calculator(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "x", "True", "1j", "abs(1)", "().__class__", "__import__('os')", "'a'*9", "9**9**9**9", "1<<99", "1;2",
     "1e999", "(" * 150, "-" * 199 + "x", "[1]", "1 if 1 else 2", "\x00", "1_0 or 2"],
)  # fmt: skip
def test_the_calculator_rejects_other_expressions(expression: str) -> None:
    with pytest.raises(ValueError, match="not an expression"):
        calculate(expression)


@given(st.text(alphabet='<tool_cal>/{}"name: 1+`python\n\\', max_size=60), st.text(max_size=20))
def test_any_text_gets_an_observation_or_ends_the_conversation(start: str, end: str) -> None:
    for tools in (calculator_tools(), Tools(PythonBlockFormat(), {"python": lambda code: code})):
        (reply,) = observations(tools, start + end)
        assert reply is None or isinstance(reply, str)


def test_a_user_tool_may_await_raise_and_return_long_text() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    def fails() -> None:
        raise KeyError("door")

    def lost() -> None:
        raise ToolUnavailable("the server is gone")

    tools = Tools(HermesFormat(), {"slow": slow, "fails": fails, "long": lambda: "x" * 5000, "lost": lost})
    names = ['{"name": "slow", "arguments": {"x": 4}}', '{"name": "fails"}', '{"name": "long"}', '{"name": "lost"}']
    a, b, c, d = observations(tools, *map(call, names))
    assert (a, b) == (response("8"), response("error: fails: 'door'"))
    assert c == response("x" * SHOWN + "... (5000 characters)")
    assert (
        isinstance(d, Verdict)
        and d.outcome is Outcome.unverifiable
        and "ToolUnavailable: the server is gone" in d.cause
    )


def counted(reply: Observation) -> tuple[float, ...]:
    assert isinstance(reply, ReplyWithCounts)
    return tuple(reply.counts[name] for name in ("calls", "malformed", "errors"))


def test_counts_of_calls_malformed_calls_and_errors() -> None:
    unknown, wrong = call('{"name": "add"}'), call('{"name": "calculate"}')
    turns = [sums("1+1") + sums("2+2"), call("37"), sums("1") + unknown + wrong + sums("1/0"), "no call"]
    *replies, last = observations(calculator_tools(), *turns)
    assert [counted(reply) for reply in replies] == [(2, 0, 0), (1, 1, 0), (4, 2, 1)] and last is None
    tools = Tools(HermesFormat(), {"calculate": lambda expression: ReplyWithCounts("?", errors=1, looked=3)})
    (reply,) = observations(tools, sums("1"))
    assert counted(reply) == (1, 0, 1) and isinstance(reply, ReplyWithCounts) and reply.counts["looked"] == 3


def test_a_python_block_is_a_call() -> None:
    tools = Tools(PythonBlockFormat(), {"python": lambda code: code.upper()})
    good, none, open_, empty = observations(
        tools, "try\n```python\nx = 1\n```\n", "x", "```python\nx", "```python\n```\n"
    )
    assert good == "\n```output\nX = 1\n\n```\n" and none is None
    for reply in (open_, empty):
        assert reply == "\n```output\nerror: a block begins with a line ```python and ends with a line ```\n```\n"


def test_python_runs_in_the_sandbox() -> None:
    needed()
    box = Sandbox(boxes=1)
    try:
        block = "```python\n{}\n```\n"
        done, failed, apart = observations(
            python_tools(box),
            block.format("print(6 * 7)"),
            block.format("print(1)\nraise SystemExit(3)"),
            block.format("import os\nprint(os.listdir('/tmp'), 'x' in globals())"),
        )
    finally:
        box.close()
    assert done == "\n```output\n42\n```\n"
    assert failed == "\n```output\n1\nerror: exit code 3\n```\n"
    assert [counted(reply) for reply in (done, failed, apart)] == [(1, 0, 0), (1, 0, 1), (1, 0, 0)]
    assert apart == "\n```output\n[] False\n```\n"


# Schemas


def test_the_schema_of_a_function_is_that_of_transformers() -> None:
    from transformers.utils import get_json_schema

    def weather(city: str, days: int = 1, exact: bool = False, names: list[str] = []) -> str:  # noqa: B006
        """Forecast the weather
        of a city.

        Args:
            city: Its name.
            days: How many.
            exact: Whether to round.
            names: Other names.
        """
        return ""

    ours, theirs = tool_schema("weather", weather), get_json_schema(weather)
    theirs["function"].pop("return", None)
    theirs["function"]["description"] = theirs["function"]["description"].replace("\n", " ")
    assert ours == theirs


def test_tools_have_schemas_if_their_calls_are_json() -> None:
    (schema,) = calculator_tools().schemas
    assert schema["function"]["name"] == "calculate" and schema["function"]["parameters"]["required"] == ["expression"]
    assert schema["function"]["description"].endswith("The result is an integer or a decimal.")
    assert Tools(PythonBlockFormat(), {"python": calculate}).schemas == ()
