"""The formats in which models write tool calls: Hermes and Qwen, Llama, Mistral."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from groupwise.core import Usage, describe_error
from groupwise.environments.tools import CALLS, HermesFormat, MalformedCall, ToolCall

__all__ = ["CALL_FORMATS", "CallFormat", "HermesCalls", "LlamaCalls", "MistralCalls", "UserCallFormat", "call_format"]


@runtime_checkable
class CallFormat(Protocol):
    """Parses a turn of the model: its text, and the tool calls in it. MalformedCall if the calls cannot be read."""

    def parse(self, turn: str) -> tuple[str, list[ToolCall]]: ...


@dataclass(frozen=True, slots=True)
class HermesCalls:
    """JSON calls between `<tool_call>` and `</tool_call>`, after the text: Hermes and Qwen.

    >>> HermesCalls().parse('Sure.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    ('Sure.', [ToolCall(name='add', arguments={'a': 1})])
    """

    def parse(self, turn: str) -> tuple[str, list[ToolCall]]:
        calls = HermesFormat().calls(turn)
        return (turn.partition("<tool_call>")[0].strip() if calls else turn), calls


@dataclass(frozen=True, slots=True)
class LlamaCalls:
    """A turn that is one JSON object with `name` and `parameters`, or several with `;` between them: Llama 3.

    >>> LlamaCalls().parse('<|python_tag|>{"name": "add", "parameters": {"a": 1}}')
    ('', [ToolCall(name='add', arguments={'a': 1})])
    >>> LlamaCalls().parse('{"a": 1}')
    ('{"a": 1}', [])
    """

    def parse(self, turn: str) -> tuple[str, list[ToolCall]]:
        text = turn.strip().removeprefix("<|python_tag|>").strip()
        tagged = text != turn.strip()
        if not text.startswith("{"):
            return turn, []
        try:
            calls = [_call(value, "parameters") for value in _objects(text)]
        except MalformedCall:
            if tagged:
                raise
            return turn, []  # an answer in JSON
        return "", calls


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """After `[TOOL_CALLS]` a JSON list of calls, or for each call its name, `[ARGS]` and the arguments: Mistral.

    >>> MistralCalls().parse('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]')
    ('', [ToolCall(name='add', arguments={'a': 1})])
    >>> MistralCalls().parse('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}')[1][1]
    ToolCall(name='now', arguments={})
    """

    def parse(self, turn: str) -> tuple[str, list[ToolCall]]:
        text, *parts = turn.split("[TOOL_CALLS]")
        if not parts:
            return turn, []
        calls: list[ToolCall] = []
        for part in parts:
            name, mark, arguments = part.partition("[ARGS]")
            if mark:
                calls.append(_call({"name": name.strip(), "arguments": _json(arguments)}, "arguments"))
                continue
            values = _json(part)
            calls += [_call(value, "arguments") for value in (values if isinstance(values, list) else [values])]
        if len(calls) > CALLS:
            raise MalformedCall(f"{len(calls)} calls in one turn, at most {CALLS}")
        return text.strip(), calls


@dataclass(frozen=True, slots=True)
class UserCallFormat:
    """A format of a user's file. `Usage` if its `parse` raises another error than MalformedCall, or returns no calls.

    `name` is that of the recipe, such as `my_agent:MyCalls`.
    """

    parser: Callable[[str], Any]
    name: str

    def parse(self, turn: str) -> tuple[str, list[ToolCall]]:
        try:
            text, calls = self.parser(turn)
            if not isinstance(text, str) or not all(isinstance(call, ToolCall) for call in calls):
                raise TypeError(f"parse returned {(text, calls)!r:.80}")
            return text, [*calls]
        except MalformedCall:
            raise
        except Exception as error:
            fix = "return the text and a list of ToolCall, or raise MalformedCall (groupwise.environments)"
            what = f"the parser of tool calls {self.name} failed"
            raise Usage(what, evidence=describe_error(error), fix=fix) from error


CALL_FORMATS: Mapping[str, type[CallFormat]] = {
    "hermes": HermesCalls, "llama3_json": LlamaCalls, "mistral": MistralCalls
}  # fmt: skip
"""The formats by their names in recipes, which are those of vLLM's tool call parsers."""


def call_format(template: str) -> CallFormat:
    """The format of the tool calls that a chat template describes to the model; Hermes' if it names none.

    >>> call_format("... [TOOL_CALLS] ...")
    MistralCalls()
    """
    if "[TOOL_CALLS]" in template:
        return MistralCalls()
    if "<tool_call>" not in template and ("<|python_tag|>" in template or "ipython" in template):
        return LlamaCalls()
    return HermesCalls()


def _objects(text: str) -> list[Any]:
    """The JSON objects of a text with `;` or white space between them. MalformedCall for any other text."""
    decoder, values, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        if len(values) == CALLS:
            raise MalformedCall(f"more than {CALLS} calls in one turn")
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise MalformedCall(f"the call is not JSON ({str(error)[:80]})") from None
        values.append(value)
        rest = text[at:].lstrip("; \n\t")
        at = len(text) - len(rest)
    return values


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"the call is not JSON ({str(error)[:80]})") from None


def _call(value: Any, field: str) -> ToolCall:
    """The call in a JSON object with a name and arguments, in the format's own field."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCall(f'a call is an object such as {{"name": ..., "{field}": {{...}}}}')
    arguments = value.get(field, value.get("arguments"))
    if not isinstance(arguments, Mapping):
        raise MalformedCall(f"the {field} of a call are an object")
    return ToolCall(value["name"], arguments)
