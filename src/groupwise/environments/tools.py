"""Tools that a model calls by what it writes: two formats of calls, and the environment that answers them."""

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

from groupwise.data import CountedText, GroupwiseError, Observation, Prompt
from groupwise.sandbox.code_block import code_of
from groupwise.sandbox.sandbox import Program, Sandbox

__all__ = ["Call", "Hermes", "Lost", "Malformed", "PythonBlock", "Tools", "calculator_tools", "python_tools"]

SHOWN = 2000
"""Characters of a tool's answer that the model reads."""
CALLS = 8
"""Calls in one turn."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the model asks for: a tool by its name, and its arguments by theirs."""

    name: str
    arguments: Mapping[str, Any]


class Malformed(ValueError):
    """What is wrong with a call, in words for the model."""


class Lost(Exception):
    """A tool that could not do its work, through no fault of the call: the answer is unverifiable."""


@runtime_checkable
class Format(Protocol):
    """How a turn says which tools to call, and how their answers are told."""

    def calls(self, said: str) -> list[Call]: ...

    def told(self, answers: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Hermes:
    """A JSON object between `<tool_call>` and `</tool_call>`, as Hermes and Qwen write it; several are called in order.

    >>> Hermes().calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [Call(name='add', arguments={'a': 1})]
    """

    def calls(self, said: str) -> list[Call]:
        """The calls of a turn, none where it has none. Malformed for one that cannot be read."""
        before, *opened = said.split("<tool_call>")  # a pattern would read on to the end from every mark that opens
        if "</tool_call>" in before or any(part.count("</tool_call>") != 1 for part in opened):
            raise Malformed("a call stands between <tool_call> and </tool_call>")
        if len(opened) > CALLS:
            raise Malformed(f"{len(opened)} calls in one turn, at most {CALLS}")
        return [self._call(part.partition("</tool_call>")[0]) for part in opened]

    def told(self, answers: Sequence[str]) -> str:
        return "\n".join(f"<tool_response>\n{answer}\n</tool_response>" for answer in answers)

    def _call(self, text: str) -> Call:
        try:
            call = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"the call is not JSON ({str(error)[:80]})") from None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise Malformed('a call is an object such as {"name": ..., "arguments": {...}}')
        arguments = call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Malformed("the arguments of a call are an object")
        return Call(call["name"], arguments)


@dataclass(frozen=True, slots=True)
class PythonBlock:
    """The last ` ```python ` block of a turn is run, and its output told in an ` ```output ` block."""

    def calls(self, said: str) -> list[Call]:
        """The call of a turn, if it has one. Malformed for a block that is empty or never closed."""
        if "```python" not in said:
            return []
        code = code_of(said)
        if code is None:
            raise Malformed("a block begins with a line ```python and ends with a line ```")
        return [Call("python", {"code": code})]

    def told(self, answers: Sequence[str]) -> str:
        return "".join(f"\n```output\n{answer}\n```\n" for answer in answers)


class Tools:
    """An environment of tools by their names: each turn's calls are answered, and a turn without a call is the last.

    A tool is a function, `async` or quick, of the call's arguments; what it returns is told as text. A malformed call,
    an unknown tool, wrong arguments and what a tool raises are told too, as `error: ...`, for the model to learn from.
    Counted are `calls`, and of these the `malformed`, which called nothing (unreadable, an unknown tool, wrong
    arguments), and the `errors`, whose tool failed. Nothing is remembered between calls.
    """

    def __init__(self, format: Format, tools: Mapping[str, Callable[..., Any]]) -> None:
        self.format, self.tools = format, tools

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        return None

    async def step(self, said: str) -> Observation:
        try:
            calls = self.format.calls(said)
        except Malformed as error:
            return CountedText(self.format.told([f"error: {error}"]), calls=1, malformed=1, errors=0)
        if not calls:
            return None
        answers = [await self._answer(call) for call in calls]
        counts = Counter(calls=len(calls), malformed=0, errors=0)
        for answer in answers:
            counts.update(answer.counts)
        return CountedText(self.format.told(answers), **counts)

    async def recall(self, said: str, reply: Observation) -> None:
        """A tool that has answered is not called again after a kill."""

    async def _answer(self, call: Call) -> CountedText:
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.tools)
            return CountedText(f"error: no tool is called {call.name[:80]!r}; there is {known}", malformed=1)
        try:
            inspect.signature(tool).bind(**call.arguments)
        except TypeError as error:
            return CountedText(f"error: {call.name}: {str(error)[:200]}", malformed=1)
        try:
            answer = tool(**call.arguments)
            answer = await answer if inspect.isawaitable(answer) else answer
            text = str(answer)
        except (GroupwiseError, Lost):
            raise
        except Exception as error:
            return CountedText(f"error: {call.name}: {str(error)[:200] or type(error).__name__}", errors=1)
        counts = answer.counts if isinstance(answer, CountedText) else {}
        return CountedText(text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)", **counts)


# Two tools


def calculate(expression: Any) -> str:
    """The value of numbers with + - * / and brackets, exactly; as a decimal where it is no whole number.

    >>> calculate("(12 + 3) * 4"), calculate("1/8"), calculate("0.1 + 0.2")
    ('60', '0.125', '0.3')
    """
    if not isinstance(expression, str) or len(expression) > 200:
        raise ValueError("expression is a text of at most 200 characters")
    try:
        if not _ARITHMETIC.fullmatch(expression):
            raise ValueError("other characters")
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
        raise ValueError("not an expression of numbers with + - * / and brackets") from None
    try:
        return str(value.numerator) if value.denominator == 1 else repr(float(value))
    except (ValueError, OverflowError):  # more digits than Python writes, or than a decimal holds
        raise ValueError("the value is too large") from None


_ARITHMETIC = re.compile(r"(?:[0-9.()+\-*/ \t\n]|(?<=[0-9.])[eE](?=[-+0-9])|(?<=[0-9])_(?=[0-9]))*")
"""All that Python's parser is given: it warns on the terminal of what it finds strange in other text."""
_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(repr(number))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("neither a number nor + - * /")


def python_in(sandbox: Sandbox) -> Callable[[Any], Any]:
    """A tool that runs a program in the sandbox and tells what it printed, and how it failed."""

    async def python(code: Any) -> str:
        if not isinstance(code, str):
            raise ValueError("code is a text")
        ran = await sandbox.execute(Program(code))
        if ran.end == "lost":
            raise Lost(ran.error)
        said = (ran.value or "").rstrip("\n")
        told = "\n".join(part for part in (said, ran.error and f"error: {ran.error}") if part)
        return CountedText(told, errors=int(bool(ran.error)))

    return python


def calculator_tools() -> Tools:
    """The tool `calculate(expression)`, called as Hermes and Qwen write it."""
    return Tools(Hermes(), {"calculate": calculate})


def python_tools(sandbox: Sandbox) -> Tools:
    """Python blocks, run in the sandbox, each on its own."""
    return Tools(PythonBlock(), {"python": python_in(sandbox)})
