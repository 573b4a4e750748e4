"""Stored conversations with tool calls: their ids, as the model's chat template writes calls and results."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from groupwise.core import GroupwiseError
from groupwise.data import Ids
from groupwise.models import PromptTemplate, Tokenizer, encode_answer, without_second_end
from groupwise.tasks.read_rows import DataRowError, kind_of

__all__ = []

ASSISTANT, CALLS = "assistant", "tool_calls"
PARTS = "parts"
"""The key of an answer that is given as ids: pairs of ids and whether the assistant wrote them."""


def has_calls(messages: Any) -> bool:
    """Whether a value is a list of messages of which one has tool calls."""
    return isinstance(messages, list) and any(isinstance(m, Mapping) and m.get(CALLS) for m in messages)


def read_message(message: Any) -> dict[str, Any]:
    """A message in the form that chat templates read: the arguments of its calls are objects. Raises `DataRowError`.

    >>> call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    >>> read_message({"role": "assistant", "content": None, "tool_calls": [call]})["tool_calls"]
    [{'type': 'function', 'id': '', 'function': {'name': 'add', 'arguments': {'a': 1}}}]
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataRowError("a message has no role")
    if not isinstance(content, str | None):
        raise DataRowError(f"the content of a message is {kind_of(content)}: it must be text")
    calls = message.get(CALLS) or []
    if not isinstance(calls, list) or (calls and message["role"] != ASSISTANT):
        raise DataRowError(f"{CALLS} is not a list in a message of the assistant")
    names = {name: message[name] for name in ("name", "tool_call_id") if isinstance(message.get(name), str)}
    read = {"role": message["role"], "content": content or "", **names}
    return read | ({CALLS: [_call(call) for call in calls]} if calls else {})


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataRowError(f"{CALLS} has a call without the name of a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise DataRowError(f"{CALLS} has arguments that are not JSON") from None
    if not isinstance(arguments, Mapping):
        raise DataRowError(f"{CALLS} has arguments that are {kind_of(arguments)}: they must be an object")
    return {
        "type": "function",
        "id": str(call.get("id") or ""),
        "function": {"name": function["name"], "arguments": dict(arguments)},
    }


def tools_of(row: Mapping[str, Any]) -> list[Any] | None:
    """The JSON schemas in the column `tools`, a list or its JSON text; None without one."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return None
    is_list = isinstance(tools, list) and all(isinstance(tool, Mapping) and "function" in tool for tool in tools)
    return tools if is_list and tools else None


def with_tools(encode: Callable[..., Ids], tools: list[Any] | None) -> Callable[..., Ids]:
    """The template with the schemas of a prompt's tools, in place of the recipe's. Without tools, unchanged."""
    return partial(encode, tools=tools) if tools and isinstance(encode, PromptTemplate) else encode


def parts_of(messages: Sequence[Mapping[str, Any]], encode: Any, tools: list[Any] | None) -> list[tuple[Ids, bool]]:
    """The ids of an answer with calls, and whether the assistant wrote them. The last end token is left out.

    An assistant's text has no control token. Its calls, and the messages of others after them, are written by the chat
    template, as for agents. Raises `DataRowError`.
    """
    if not isinstance(encode, PromptTemplate) or encode.name != "chat":
        raise DataRowError(f"{CALLS} are written by the model's chat template: use --template chat")
    parts: list[tuple[Ids, bool]] = []
    written: Ids = ()
    try:
        for own, turn in groupby(messages, key=lambda message: message["role"] == ASSISTANT):
            group = list(turn)
            if own:
                ids = ids_of(group[0], encode, tools)
            else:
                ids = without_second_end(encode.tokenizer, written, encode.later_messages(group))
            parts.append((ids, own))
            written += ids
    except GroupwiseError as error:
        raise DataRowError(f"the chat template cannot write this conversation ({error.what})") from error
    last, _ = parts.pop()
    return [*parts, (without_end(encode.tokenizer, last), True)]


def ids_of(message: Mapping[str, Any], template: PromptTemplate, tools: list[Any] | None) -> Ids:
    """The ids of an assistant's message, with the token that ends the turn."""
    if CALLS in message:
        return template.called(message, tools)
    return encode_answer(template.tokenizer, message["content"])


def without_end(tokenizer: Tokenizer, ids: Ids) -> Ids:
    """The ids of a turn without the token that ends it."""
    return ids[:-1] if ids[-1:] and ids[-1] in tokenizer.eos_ids else ids
