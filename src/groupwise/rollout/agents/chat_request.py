"""Requests in OpenAI's form: what the endpoint reads of them, and what it refuses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core import is_nested_deeper
from groupwise.data import AgentMessage

__all__ = ["ChatRequest", "RequestError", "chat_request", "text_request"]

POLICY = "policy"
"""The name of the model under training in requests."""
MOST_CHOICES = 16
"""The most answers of one request (`n`)."""
MOST_MESSAGES = 4096
"""The most messages of one request."""
DEEPEST = 64
"""The deepest nesting of JSON in a request."""
ROLES = ("system", "developer", "user", "assistant", "tool")
IGNORED = (
    "user", "metadata", "store", "stream_options", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "prediction", "cache_salt", "priority", "request_id",
)  # fmt: skip
"""Fields of a request that change no token of its answer: OpenAI's, and vLLM's."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1), "frequency_penalty": (None, 0), "presence_penalty": (None, 0), "logit_bias": (None, {}),
    "seed": (None,), "top_logprobs": (None, 0), "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"), "parallel_tool_calls": (None, True), "modalities": (None, ["text"]),
    "reasoning_effort": (None,), "echo": (None, False), "best_of": (None, 1), "suffix": (None,),
    "verbosity": (None, "medium"), "functions": (None, []), "function_call": (None, "auto", "none"), "audio": (None,),
    "moderation": (None,), "web_search_options": (None,), "top_k": (None, -1, 0), "min_p": (None, 0),
    "repetition_penalty": (None, 1), "min_tokens": (None, 0), "ignore_eos": (None, False),
    "include_stop_str_in_output": (None, False), "chat_template_kwargs": (None, {}),
}  # fmt: skip
"""Fields that are accepted with these values only: with any other, the policy would be another distribution."""
FIXES: Mapping[str, str] = {
    "tool_choice": 'send "auto", and let the agent decide about an answer without a call',
    "parallel_tool_calls": "leave it out, and answer each call of a message",
    "response_format": "ask for the format in a message, and let the agent's reward judge it",
    "functions": "send tools", "function_call": "send tools",
    "chat_template_kwargs": "put the text that they add into a message",
}  # fmt: skip
"""What to do instead of a value that is not accepted, where it is not to leave the field out."""


class RequestError(Exception):
    """A request that is answered with an error in OpenAI's form. `status` is HTTP's; `fix` is what to do instead."""

    def __init__(
        self, message: str, *, fix: str = "", status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(f"{message}; {fix}" if fix else message)
        self.message, self.fix, self.status, self.code, self.param = message, fix, status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object of the reply."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a request asks for. `limit` is the most tokens of an answer; None for as many as the sample has room for.

    `temperature` and `stop` are None for the recipe's. `messages` have the form that chat templates read.
    `completions_prompt` is the prompt of a request without messages. The reply to an `is_response` request has the form
    of the Responses API.
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    completions_prompt: str | None = None
    n: int = 1
    limit: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] | None = None
    logprobs: bool = False
    stream: bool = False
    usage_in_stream: bool = False
    is_response: bool = False

    @property
    def meanings(self) -> tuple[Any, ...]:
        """The meaning of each message: equal for messages that a client has written again in another form."""
        return tuple(map(meaning, self.messages))

    def new_messages(self, first: int = 0) -> tuple[AgentMessage, ...]:
        """The messages from index `first` on, for people to read. The text of a request without messages is one."""
        if self.completions_prompt is not None:
            return (AgentMessage("text", self.completions_prompt),)
        return tuple(AgentMessage(*one) for one in self.meanings[first:])


def chat_request(body: Any, models: Sequence[str]) -> ChatRequest:
    """The request in a body of `chat/completions`. RequestError for one that cannot be answered as it is meant."""
    fields = _fields(body, models, {"messages", "tools"})
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(t, Mapping) and _is_tool(t) for t in tools):
        raise RequestError("tools is not a list of functions with a name", param="tools")
    if fields.get("tool_choice") == "none":
        tools = []
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= MOST_MESSAGES:
        raise RequestError(f"messages is not a list of 1 to {MOST_MESSAGES} messages", param="messages")
    read = tuple(_message(message, f"messages.{i}") for i, message in enumerate(messages))
    return ChatRequest(messages=read, tools=tuple(tools), **_common(fields))


def text_request(body: Any, models: Sequence[str]) -> ChatRequest:
    """The request in a body of `completions`: a text that the model continues."""
    fields = _fields(body, models, {"prompt"})
    prompt = fields.get("prompt")
    prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    if not isinstance(prompt, str) or not prompt:
        raise RequestError("prompt is not a text", param="prompt")
    return ChatRequest(completions_prompt=prompt, **_common(fields))


def meaning(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """Role, text and parsed tool calls of a message. The ids of calls are left out: clients make their own.

    White space around an answer is left out, too: clients strip it, and its tokens are kept as they were sampled.

    >>> call = {"function": {"name": "add", "arguments": {"b": 1, "a": 2}}}
    >>> meaning({"role": "assistant", "content": "", "tool_calls": [call]})
    ('assistant', '', (('add', '{"a": 2, "b": 1}'),))
    """
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = tuple((f["name"], json.dumps(f["arguments"], sort_keys=True)) for f in functions)
    text = message.get("content") or ""
    return message["role"], text.strip() if message["role"] == "assistant" else text, calls


def _fields(body: Any, models: Sequence[str], own: set[str]) -> Mapping[str, Any]:
    """The fields of a body whose model is one of `models`. RequestError for an unknown field, or one with an effect."""
    if not isinstance(body, Mapping) or is_nested_deeper(body, DEEPEST):
        raise RequestError("the body is not a JSON object, or is nested too deeply")
    if (model := body.get("model")) not in models:
        what = f"the model {model!r:.80} does not exist: this run answers for {', '.join(models)}"
        fix = f"ask for {POLICY}, or add the name to agent.model_names"
        raise RequestError(what, fix=fix, status=404, code="model_not_found", param="model")
    read = {"model", "n", "max_tokens", "max_completion_tokens", "temperature", "stop", "logprobs", "stream"}
    for name, value in body.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            what = f"{name} = {value!r:.60} is not supported: the answer would not be a sample of the policy"
            raise RequestError(what, fix=FIXES.get(name, "leave it out"), code="unsupported_value", param=name)
        if name not in own | read and name not in NEUTRAL and name not in IGNORED:
            what = f"{name!r:.60} is not supported"
            raise RequestError(what, fix="leave it out", code="unsupported_parameter", param=str(name)[:60])
    return body


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    limit = fields.get("max_completion_tokens")
    limit = fields.get("max_tokens") if limit is None else limit
    stop, options = fields.get("stop"), fields.get("stream_options")
    stop = [stop] if isinstance(stop, str) else stop
    if stop is not None and not (isinstance(stop, list) and all(isinstance(s, str) and s for s in stop)):
        raise RequestError("stop is not a text or a list of texts", param="stop")
    if not isinstance(options, Mapping | None):
        raise RequestError("stream_options is not an object", param="stream_options")
    temperature = fields.get("temperature")
    if not (temperature is None or (_is_number(temperature) and 0 <= temperature <= 2)):
        raise RequestError("temperature is not a number from 0 to 2", param="temperature")
    return {
        "n": _count(fields.get("n"), "n", MOST_CHOICES) or 1, "limit": _count(limit, "max_tokens"),
        "temperature": None if temperature is None else float(temperature), "stop": tuple(stop) if stop else None,
        "logprobs": fields.get("logprobs") in (True, 1), "stream": fields.get("stream") is True,
        "usage_in_stream": bool((options or {}).get("include_usage")),
    }  # fmt: skip


def _count(value: Any, name: str, most: int | None = None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        raise RequestError(f"{name} is not a whole number from 1{f' to {most}' if most else ''}", param=name)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_tool(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return tool.get("type") == "function" and isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _message(message: Any, where: str) -> dict[str, Any]:
    """A message in the form that templates read: its text as one string, the arguments of tool calls as objects."""
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise RequestError(f"{where}: expected an object with a role of {', '.join(ROLES)}", param=where)
    role = "system" if message["role"] == "developer" else message["role"]  # the new name of the same role
    read: dict[str, Any] = {"role": role, "content": _text(message.get("content"), where)}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls is not a list", param=where)
        read["tool_calls"] = [_tool_call(call, where) for call in calls]
    for name in ("name", "tool_call_id"):
        if (text := message.get(name)) is not None:
            if not isinstance(text, str):
                raise RequestError(f"{where}.{name} is not a text", param=where)
            read[name] = text
    return read


def _text(content: Any, where: str) -> str:
    """The text of a message: a string, a list of parts of text, or none."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise RequestError(f"{where}.content is neither a text nor a list of parts of text", param=where)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.tool_calls has a call without the name of a function", param=where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError(f"{where}.tool_calls has arguments that are not JSON", param=where) from None
    name = {"name": function["name"], "arguments": arguments}
    return {"type": "function", "id": str(call.get("id", "")), "function": name}
