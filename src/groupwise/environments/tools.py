"""Tool use as an environment: it parses the model's tool calls, runs them, and replies with the results."""

import ast
import inspect
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, Protocol, runtime_checkable

from groupwise.core.errors import ends_run
from groupwise.data import Observation, Prompt, ReplyWithCounts
from groupwise.environments.tool_schemas import tool_schema
from groupwise.sandbox.code_block import code_of
from groupwise.sandbox.sandbox import ExecutionInput, Sandbox

__all__ = [
    "HermesFormat",
    "MalformedCall",
    "PythonBlockFormat",
    "ToolCall",
    "ToolUnavailable",
    "Tools",
    "calculator_tools",
    "python_tools",
]

SHOWN = 2000
"""The most characters of a tool's result that are passed to the model."""
CALLS = 8
"""The most tool calls in one turn of the model."""
NO_PAIR = "a call stands between <tool_call> and </tool_call>"
"""A message to the model about a malformed call. It must not change: its tokens are part of a run."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call: the tool's name and its keyword arguments."""

    name: str
    arguments: Mapping[str, Any]


class MalformedCall(ValueError):
    """A call that cannot be parsed. The model gets the message."""


class ToolUnavailable(Exception):
    """A tool failed through no fault of the call, for example a lost server. The sample becomes unverifiable."""


@runtime_checkable
class ToolFormat(Protocol):
    """Parses the tool calls of a model's turn, and renders their results as an observation."""

    def calls(self, message: str) -> list[ToolCall]: ...

    def render(self, results: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class HermesFormat:
    """JSON calls between `<tool_call>` and `</tool_call>`, the format of Hermes and Qwen; several run in order.

    >>> HermesFormat().calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [ToolCall(name='add', arguments={'a': 1})]
    """

    def calls(self, message: str) -> list[ToolCall]:
        """Parse the tool calls in a turn of the model, possibly none. Raises MalformedCall for an invalid one."""
        before, *opened = message.split("<tool_call>")  # a regular expression would take quadratic time
        if "</tool_call>" in before or any(part.count("</tool_call>") != 1 for part in opened):
            raise MalformedCall(NO_PAIR)
        if len(opened) > CALLS:
            raise MalformedCall(f"{len(opened)} calls in one turn, at most {CALLS}")
        return [self._call(part.partition("</tool_call>")[0]) for part in opened]

    def render(self, results: Sequence[str]) -> str:
        """Write each result between `<tool_response>` and `</tool_response>`."""
        return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)

    def _call(self, text: str) -> ToolCall:
        try:
            call = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedCall(f"the call is not JSON ({str(error)[:80]})") from None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise MalformedCall('a call is an object such as {"name": ..., "arguments": {...}}')
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise MalformedCall("the arguments of a call are an object")
        return ToolCall(call["name"], arguments)


@dataclass(frozen=True, slots=True)
class PythonBlockFormat:
    """The last ` ```python ` block of a turn is a call of `python`; its output becomes an ` ```output ` block."""

    def calls(self, message: str) -> list[ToolCall]:
        """Parse the tool call in a turn of the model, if any. MalformedCall for an empty or unclosed block."""
        if "```python" not in message:
            return []
        code = code_of(message)
        if code is None:
            raise MalformedCall("a block begins with a line ```python and ends with a line ```")
        return [ToolCall("python", {"code": code})]

    def render(self, results: Sequence[str]) -> str:
        """Write each result as an ` ```output ` block."""
        return "".join(f"\n```output\n{result}\n```\n" for result in results)


class Tools:
    """An environment that runs the tool calls of each turn. A turn without a call ends the conversation.

    A tool is a function of the call's arguments, either `async` or fast. The model gets its return value as text. For
    a malformed call, an unknown tool, wrong arguments or an exception, the model gets `error: ...`. Observations
    count `calls`; `malformed` calls, which ran no tool; and `errors`, calls whose tool failed. The environment has no
    state. A chat template passes `schemas` to the model; other models do not know which tools exist.
    """

    def __init__(self, format: ToolFormat, tools: Mapping[str, Callable[..., Any]]) -> None:
        self.format, self.tools = format, tools

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """The JSON schema of each tool. Empty if calls are not JSON: a template would describe JSON calls."""
        if not isinstance(self.format, HermesFormat):
            return ()
        return [tool_schema(name, function) for name, function in self.tools.items()]

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        return None

    async def step(self, message: str) -> Observation:
        try:
            calls = self.format.calls(message)
        except MalformedCall as error:
            return ReplyWithCounts(self.format.render([f"error: {error}"]), calls=1, malformed=1, errors=0)
        if not calls:
            return None
        results = [await self._run(call) for call in calls]
        counts = Counter(calls=len(calls), malformed=0, errors=0)
        for result in results:
            counts.update(result.counts)
        return ReplyWithCounts(self.format.render(results), **counts)

    async def restore(self, message: str, observation: Observation) -> None:
        """Does nothing: the tools have no state, so a call that was logged before a kill does not run again."""

    async def _run(self, call: ToolCall) -> ReplyWithCounts:
        tool = self.tools.get(call.name)
        if tool is None:
            names = ", ".join(self.tools)
            return ReplyWithCounts(f"error: no tool is called {call.name[:80]!r}; there is {names}", malformed=1)
        try:
            inspect.signature(tool).bind(**call.arguments)
        except TypeError as error:
            return ReplyWithCounts(f"error: {call.name}: {str(error)[:200]}", malformed=1)
        try:
            result = tool(**call.arguments)
            result = await result if inspect.isawaitable(result) else result
            text = str(result)
        except Exception as error:
            if ends_run(error) or isinstance(error, ToolUnavailable):
                raise
            return ReplyWithCounts(f"error: {call.name}: {str(error)[:200] or type(error).__name__}", errors=1)
        counts = result.counts if isinstance(result, ReplyWithCounts) else {}
        return ReplyWithCounts(text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)", **counts)


# Two tools


def calculate(expression: Any) -> str:
    """Evaluate numbers with + - * / and brackets exactly. The result is an integer or a decimal.

    >>> calculate("(12 + 3) * 4"), calculate("1/8"), calculate("0.1 + 0.2")
    ('60', '0.125', '0.3')

    Args:
        expression: the text, such as "(12 + 3) * 4"
    """
    if not isinstance(expression, str) or len(expression) > 200:
        raise ValueError("expression is a text of at most 200 characters")
    try:
        if not _ARITHMETIC.fullmatch(expression):
            raise ValueError("the expression has characters other than numbers, + - * / and brackets")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise ValueError("not an expression of numbers with + - * / and brackets") from None
    try:
        return str(value.numerator) if value.denominator == 1 else repr(float(value))
    except (ValueError, OverflowError):  # more digits than Python prints, or than a float can represent
        raise ValueError("the value is too large to print") from None


_ARITHMETIC = re.compile(r"(?:[0-9.()+\-*/ \t\n]|(?<=[0-9.])[eE](?=[-+0-9])|(?<=[0-9])_(?=[0-9]))*")
"""A pattern of arithmetic. Only matching text goes to Python's parser, which prints warnings for some other text."""
_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Fraction(repr(value))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("an element of the expression is neither a number nor one of + - * /")


def python_tool(sandbox: Sandbox) -> Callable[[Any], Any]:
    """A tool that runs a program in the sandbox. Returns its output, followed by its error if it failed."""

    async def python(code: Any) -> str:
        if not isinstance(code, str):
            raise ValueError("the argument code must be text")
        execution = await sandbox.execute(ExecutionInput(code))
        if execution.no_result:
            raise ToolUnavailable(execution.error)
        output = (execution.return_value or "").rstrip("\n")
        error = f"error: {execution.error}" if execution.error else ""
        text = "\n".join(part for part in (output, error) if part)
        return ReplyWithCounts(text, errors=int(bool(execution.error)))

    return python


def calculator_tools() -> Tools:
    """The tool `calculate(expression)`, in the call format of Hermes and Qwen."""
    return Tools(HermesFormat(), {"calculate": calculate})


def python_tools(sandbox: Sandbox) -> Tools:
    """The tool `python`: the last Python block of each turn of the model runs in the sandbox, in a new process."""
    return Tools(PythonBlockFormat(), {"python": python_tool(sandbox)})
