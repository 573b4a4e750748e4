"""The Responses API: the samples of the same conversation over `chat/completions`, its objects, events and refusals."""

import json
from typing import Any

import pytest

from groupwise.data import Sample
from tests.models.test_templates import CHATML, trained
from tests.rollout.test_agents import CALL, QWEN, TOOLS, Client, plain_clients, ran, says, user

__all__ = ["plain_clients"]

FLAT = [{"type": "function", **TOOLS[0]["function"], "strict": True}]
SYSTEM = {"role": "system", "content": "Be brief."}


async def response(client: Client, items: Any, **fields: Any) -> dict[str, Any]:
    reply = await client.post("/responses", input=items, **fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def samples(agent: Any, *texts: str) -> list[Sample]:
    vocabulary = trained(QWEN)
    rollout, _ = ran(agent, says(vocabulary, *texts), vocabulary)
    assert all(s.verdict and not s.verdict.cause for s in rollout.samples), [s.verdict for s in rollout.samples]
    return list(rollout.samples)


def test_a_conversation_with_a_tool_is_the_sample_of_the_same_chat() -> None:
    async def over_chat(row: Any, client: Client) -> float:
        messages: list[Any] = [SYSTEM, user("1+2?")]
        messages.append(await client.chat(messages, tools=TOOLS))
        call = messages[-1]["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call, "content": "3"})
        messages += [await client.chat(messages, tools=TOOLS), user("sure?")]
        await client.chat(messages, tools=TOOLS, max_completion_tokens=9)
        return 1.0

    async def over_responses(row: Any, client: Client) -> float:
        items: list[Any] = [user("1+2?")]
        settings: dict[str, Any] = {"instructions": "Be brief.", "tools": FLAT, "store": False}
        first = await response(client, items, **settings)
        text, call = first["output"]
        assert text["content"][0]["text"] == "So" and (call["type"], call["name"]) == ("function_call", "add")
        assert json.loads(call["arguments"]) == {"a": 1, "b": 2} and first["status"] == "completed"
        items += [*first["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}]
        items += [*(await response(client, items, **settings))["output"], user("sure?")]
        last = await response(client, items, **settings, max_output_tokens=9)
        assert last["output"][0]["content"][0]["text"] == "yes" and last["id"] == "resp-4-0-2"
        assert last["usage"]["total_tokens"] == last["usage"]["input_tokens"] + last["usage"]["output_tokens"]
        return 1.0

    here, there = (samples(agent, CALL, "3", "yes") for agent in (over_chat, over_responses))
    assert len(here) == 1 and list(map(repr, here)) == list(map(repr, there))


def test_a_response_is_streamed_as_events() -> None:
    async def agent(row: Any, client: Client) -> float:
        reply = await client.post("/responses", input="1+2?", tools=FLAT, stream=True)
        events = [dict(line.split(": ", 1) for line in event.split("\n")) for event in reply.text.strip().split("\n\n")]
        data = [json.loads(event["data"]) for event in events]
        assert [d["type"] for d in data] == [event["event"] for event in events]
        assert [d["sequence_number"] for d in data] == list(range(len(data)))
        text, arguments = (
            "".join(d["delta"] for d in data if d["type"] == f"response.{kind}.delta")
            for kind in ("output_text", "function_call_arguments")
        )
        assert text == "So" and json.loads(arguments) == {"a": 1, "b": 2}
        done = [d["item"] for d in data if d["type"] == "response.output_item.done"]
        assert data[-1]["type"] == "response.completed" and data[-1]["response"]["output"] == done
        assert data[0]["response"]["output"] == []
        return 1.0

    samples(agent, CALL)


def test_a_response_that_its_limit_ends_is_incomplete() -> None:
    async def agent(row: Any, client: Client) -> float:
        reply = await response(client, "say", max_output_tokens=2)
        assert reply["status"] == "incomplete" and reply["incomplete_details"] == {"reason": "max_output_tokens"}
        return 1.0

    samples(agent, "many words and more")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": "a", "previous_response_id": "resp-1"}, "send the whole conversation as input"),
    ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "ask for the format in a message"),
    ({"input": "a", "reasoning": {"effort": "high"}}, "leave it out"),
    ({"input": "a", "messages": []}, "'messages' is not supported; leave it out"),
    ({"input": "a", "top_p": 0.5}, "leave it out"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "send messages, function calls and their outputs"),
    ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, "parts of text"),
    ({"input": "a", "tools": [{"type": "web_search"}]}, "tools is not a list of functions"),
    ({"input": 7}, "input is not a text or a list of items"),
    ({"input": []}, "messages is not a list of 1 to"),
]


@pytest.mark.parametrize(("body", "way"), REFUSED)
def test_what_a_response_cannot_do_is_refused_with_what_to_do(body: dict[str, Any], way: str) -> None:
    vocabulary = trained(CHATML)

    async def agent(row: Any, client: Client) -> float:
        reply = await client.post("/responses", **body)
        assert reply.status_code == 400 and way in reply.json()["error"]["message"], reply.text
        await client.chat([user("a")])
        return 1.0

    (sample,) = ran(agent, says(vocabulary, "one"), vocabulary)[0].samples
    assert sample.verdict and not sample.verdict.cause, sample.verdict
