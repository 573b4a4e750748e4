"""Replies in OpenAI's form: JSON objects, and the same as events of a stream."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from groupwise.data import Finish
from groupwise.models import Tokenizer
from groupwise.rollout.agents.chat_request import POLICY, ChatRequest
from groupwise.rollout.agents.episode import AnsweredCall

__all__ = ["reply_of", "stream_of"]


def reply_of(
    request: ChatRequest, answers: Sequence[AnsweredCall], identity: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The reply to a request. `system_fingerprint` is the version of the weights; there is no clock in it."""
    chat = request.completions_prompt is None
    choices = []
    for i, one in enumerate(answers):
        content = {"message": one.message} if chat else {"text": one.text}
        logprobs = _logprobs(one, tokenizer) if request.logprobs and chat else None
        choices.append({"index": i, **content, "finish_reason": finish_of(one), "logprobs": logprobs})
    first = answers[0]
    prompt = len(first.conversation_sample.context) + first.answer_start
    answer = sum(len(one.tokens) for one in answers)
    return {
        "id": identity,
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": POLICY,
        "choices": choices,
        "system_fingerprint": f"version-{max(first.conversation_sample.origin[first.answer_start :], default=0)}",
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


def finish_of(answer: AnsweredCall) -> str:
    """The reason in OpenAI's words. An answer that its own limit ended has no finish of its sample yet."""
    if answer.calls:
        return "tool_calls"
    return "stop" if answer.conversation_sample.finish is Finish.stop else "length"


def stream_of(request: ChatRequest, reply: dict[str, Any]) -> Iterator[bytes]:
    """The reply as events: each answer whole in one event, then its finish reason, and the usage on request."""
    head = {key: reply[key] for key in ("id", "created", "model", "system_fingerprint")}
    head["object"] = "chat.completion.chunk" if request.completions_prompt is None else reply["object"]

    def event(choices: list[Any], **others: Any) -> bytes:
        return b"data: " + json.dumps({**head, "choices": choices, **others}).encode() + b"\n\n"

    for choice in reply["choices"]:
        index = {"index": choice["index"], "logprobs": choice["logprobs"]}
        if request.completions_prompt is None:
            calls = [{"index": i, **call} for i, call in enumerate(choice["message"].get("tool_calls", ()))]
            delta = choice["message"] | ({"tool_calls": calls} if calls else {})
            yield event([{**index, "delta": delta, "finish_reason": None}])
            yield event([{**index, "delta": {}, "finish_reason": choice["finish_reason"]}])
        else:
            yield event([{**index, "text": choice["text"], "finish_reason": choice["finish_reason"]}])
    if request.usage_in_stream:
        yield event([], usage=reply["usage"])
    yield b"data: [DONE]\n\n"


def _logprobs(answer: AnsweredCall, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The log-prob of each token of an answer, as it was sampled; None for an untrained one, which keeps none."""
    if not answer.plan.trained:
        return None
    pairs = zip(answer.tokens, answer.conversation_sample.logp[answer.answer_start :])
    texts = [(tokenizer.decode([token]), logp) for token, logp in pairs]
    content = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in texts]
    return {"content": content}
