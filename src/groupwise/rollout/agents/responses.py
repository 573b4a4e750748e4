"""OpenAI's Responses API: its requests as chat requests, and replies to these as its objects and events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.rollout.agents.chat_request import IGNORED, ChatRequest, RequestError, chat_request

__all__ = ["response_events", "response_of", "response_request"]

SAME = ("model", "temperature", "top_p", "top_logprobs", "tool_choice", "parallel_tool_calls", "stream", *IGNORED)
"""Fields with the name and meaning that they have in `chat/completions`."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "text": (None, {}, {"format": {"type": "text"}}), "truncation": (None, "disabled"), "background": (None, False),
    "reasoning": (None, {}), "previous_response_id": (None,), "conversation": (None,), "prompt": (None,),
    "max_tool_calls": (None,),
}  # fmt: skip
"""Fields that are accepted with these values only."""
FIXES: Mapping[str, str] = {
    "previous_response_id": "send the whole conversation as input",
    "conversation": "send the whole conversation as input",
    "text": "ask for the format in a message, and let the agent's reward judge it",
}  # fmt: skip
"""What to do instead of a value that is not accepted, where it is not to leave the field out."""


def response_request(body: Any, models: Sequence[str]) -> ChatRequest:
    """The request in a body of `responses`. RequestError for one that cannot be answered as it is meant."""
    if not isinstance(body, Mapping):
        raise RequestError("the body is not a JSON object")
    for name, value in body.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            what = f"{name} = {value!r:.60} is not supported"
            raise RequestError(what, fix=FIXES.get(name, "leave it out"), code="unsupported_value", param=name)
    known = {*NEUTRAL, "instructions", "input", "tools", "max_output_tokens", "include"}
    chat = {name: value for name, value in body.items() if name not in known}
    if others := sorted(chat.keys() - {*SAME}):
        what = f"{others[0]!r:.60} is not supported"
        raise RequestError(what, fix="leave it out", code="unsupported_parameter", param=str(others[0])[:60])
    instructions, tools = body.get("instructions"), body.get("tools") or []
    chat["messages"] = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] += messages_of(body.get("input"))
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools is not a list of functions", param="tools")
    chat["tools"] = [{"type": tool.get("type"), "function": without(tool, "type", "strict")} for tool in tools]
    chat["max_completion_tokens"] = body.get("max_output_tokens")
    return replace(chat_request(chat, models), is_response=True)


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A copy without these fields."""
    return {name: value for name, value in fields.items() if name not in names}


def messages_of(items: Any) -> list[dict[str, Any]]:
    """The messages of an `input`: a text of the user, or items. The calls after an assistant's text are of its message.

    >>> messages_of([{"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"}])
    [{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'a', 'function': {'name': 'add', 'arguments': '{}'}}]}]
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise RequestError("input is not a text or a list of items", param="input")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item.get("role"), "content": item.get("content")})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                calls = messages[-1].setdefault("tool_calls", [])
                calls.append({"id": item.get("call_id"), "function": function})
            case "function_call_output":
                result = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
                messages.append({"role": "tool", **result})
            case kind:
                what = f"input.{i}: an item of the type {kind!r:.40} is not supported"
                raise RequestError(what, fix="send messages, function calls and their outputs", param="input")
    return messages


def response_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The object of a response, from the reply to its request as a chat."""
    (choice,), usage, identity = reply["choices"], reply["usage"], reply["id"]
    message, cut = choice["message"], choice["finish_reason"] == "length"
    calls, done = message.get("tool_calls", ()), {"status": "incomplete" if cut else "completed"}
    part = {"type": "output_text", "text": message["content"] or "", "annotations": [], "logprobs": []}
    output = [{"type": "message", "id": f"msg-{identity}", "role": "assistant", "content": [part], **done}]
    output = [] if calls and not part["text"] else output
    for call in calls:
        head = {"type": "function_call", "id": f"fc-{call['id']}", "call_id": call["id"]}
        output.append({**head, **call["function"], **done})
    return {
        "id": identity, "object": "response", "created_at": 0, "model": reply["model"], **done, "output": output,
        "system_fingerprint": reply["system_fingerprint"], "error": None, "instructions": None, "metadata": {},
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None, "parallel_tool_calls": True,
        "temperature": None, "top_p": None, "tool_choice": "auto", "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }  # fmt: skip


def response_events(response: Mapping[str, Any]) -> Iterator[bytes]:
    """A response as events of a stream: each text, and the arguments of each call, whole in one event."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[tuple[str, dict[str, Any]]] = [("created", {"response": begun})]
    for i, item in enumerate(response["output"]):
        place = {"output_index": i, "item_id": item["id"]}
        if item["type"] == "message":
            (part,), place = item["content"], {**place, "content_index": 0}
            opened = {**item, "status": "in_progress", "content": []}
            text = {**place, "logprobs": []}
            inner = [
                ("content_part.added", {**place, "part": {**part, "text": ""}}),
                ("output_text.delta", {**text, "delta": part["text"]}),
                ("output_text.done", {**text, "text": part["text"]}),
                ("content_part.done", {**place, "part": part}),
            ]
        else:
            opened, arguments = {**item, "status": "in_progress", "arguments": ""}, item["arguments"]
            done = {**place, "name": item["name"], "arguments": arguments}
            inner = [
                ("function_call_arguments.delta", {**place, "delta": arguments}),
                ("function_call_arguments.done", done),
            ]
        events.append(("output_item.added", {"output_index": i, "item": opened}))
        events += [*inner, ("output_item.done", {"output_index": i, "item": item})]
    events.append((response["status"], {"response": response}))
    for number, (name, fields) in enumerate(events):
        kind = f"response.{name}"
        data = json.dumps({"type": kind, "sequence_number": number, **fields})
        yield f"event: {kind}\ndata: {data}\n\n".encode()
