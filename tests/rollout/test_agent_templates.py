"""Agents with tools in the formats of Llama 3 and Mistral: calls are parsed, and a conversation is one sample."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Fast

from groupwise.core import BadData
from groupwise.data import ENVIRONMENT, WRITTEN, Prompt
from groupwise.models import Tokenizer, find_template
from groupwise.tasks import RowsTask
from groupwise.tasks.row_columns import RowColumns
from groupwise.tasks.stored_rows import read_stored
from tests.models.test_templates import trained
from tests.rollout.fakes import stored
from tests.rollout.test_agents import QWEN, TOOLS, Client, plain_clients, ran, user

__all__ = ["plain_clients"]

LLAMA = (
    "{{- bos_token }}{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}{%- if tools %}{{- 'Environment: ipython\n' }}{%- endif %}"
    "{{- system + '<|eot_id|>' }}"
    "{%- if tools %}{%- set asked = messages[0].content | trim %}{%- set messages = messages[1:] %}"
    "{{- '<|start_header_id|>user<|end_header_id|>\n\nFunctions:\n\n' }}"
    "{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{{- '\n\n' + asked + '<|eot_id|>' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.tool_calls %}{%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    "{%- set call = m.tool_calls[0].function %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}"
    "{%- elif m.role == 'tool' %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}"
    "{%- if m.content is mapping or m.content is iterable %}{{- m.content | tojson }}"
    "{%- else %}{{- m.content }}{%- endif %}{{- '<|eot_id|>' }}"
    "{%- else %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
"""As Llama 3.1's: tools in the first user's message, results as JSON with the role `ipython`, and one call in a turn.

The public texts of Llama 3.1 Instruct and Mistral 7B Instruct v0.3 passed the tests of this file, too.
"""

MISTRAL = (
    "{%- set turns = namespace(count=0) %}{%- for m in messages %}{%- if m.role != 'tool' and not m.tool_calls %}"
    "{%- if (m.role == 'user') != (turns.count % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{%- set turns.count = turns.count + 1 %}{%- endif %}{%- endfor %}"
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{- bos_token }}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- if tools and m == users[-1] %}"
    "{{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + m.content + '[/INST]' }}"
    "{%- elif m.tool_calls %}{{- '[TOOL_CALLS] [' }}{%- for c in m.tool_calls %}"
    "{%- if c.id | length != 9 %}{{- raise_exception('the id of a call has nine characters') }}{%- endif %}"
    "{%- set call = c.function | tojson %}{{- call[:-1] + ', \"id\": \"' + c.id + '\"}' }}"
    "{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']' + eos_token }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if m.tool_call_id | length != 9 %}{{- raise_exception('the id of a call has nine characters') }}{%- endif %}"
    '{{- \'[TOOL_RESULTS] {"content": \' + m.content | string + \', "call_id": "\' + m.tool_call_id }}'
    "{{- '\"}[/TOOL_RESULTS]' }}{%- endif %}{%- endfor %}"
)
"""As Mistral's version 3: tools before the last user's message, ids of nine characters, no generation prompt; users and
answers alternate, but for calls and their results."""

LLAMA_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
MISTRAL_TOKENS = (
    *("</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)


def vocabulary(template: str, tokens: tuple[str, ...], end: str) -> Tokenizer:
    """A tokenizer with these control tokens."""
    base = trained(template)
    fast = Fast.from_str(base.tokenizer_json.decode())
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    config = {**json.loads(dict(base.extra_files)["tokenizer_config.json"]), "eos_token": end}
    files = (("tokenizer_config.json", json.dumps(config).encode()),)
    return Tokenizer(fast.to_str().encode(), frozenset({fast.token_to_id(end)}), files)


@pytest.mark.parametrize(
    ("template", "tokens", "end", "call", "frame"),
    [
        (LLAMA, LLAMA_TOKENS, "<|eot_id|>", '{"name": "add", "parameters": {"a": 1, "b": 2}}',
         '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'),
        (MISTRAL, MISTRAL_TOKENS, "</s>", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]',
         '[TOOL_RESULTS] {"content": 3, "call_id": "@"}[/TOOL_RESULTS]'),
    ],
    ids=["llama", "mistral"],
)  # fmt: skip
def test_a_tool_is_called_in_the_models_format(
    template: str, tokens: tuple[str, ...], end: str, call: str, frame: str
) -> None:
    """The call is parsed; its result and a further question are written in the template's frame, in one sample."""
    words, ids = vocabulary(template, tokens, end), list[str]()

    async def agent(row: Any, client: Client) -> float:
        messages: list[Any] = [user("1+2?")]
        reply = await client.chat(messages, tools=TOOLS)
        assert reply["tool_calls"][0]["function"]["name"] == "add", reply
        assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}
        ids.append(reply["tool_calls"][0]["id"])
        messages += [reply, {"role": "tool", "tool_call_id": ids[0], "content": "3"}]
        messages += [await client.chat(messages, tools=TOOLS), user("sure?")]
        assert (await client.chat(messages, tools=TOOLS))["content"] == "yes"
        return 1.0

    answers = iter([call, "3.", "yes"])
    stop = min(words.eos_ids)
    rollout, _ = ran(agent, lambda request: (*words.encode_template(next(answers)), stop), words)
    (sample,) = rollout.samples
    assert sample.verdict and not sample.verdict.cause, sample.verdict
    assert [words.decode(sample.tokens[a:b]) for a, b in sample.turns] == [call, "3.", "yes"]
    (_, b), (c, _), _ = sample.turns
    inserted = sample.tokens[b:c]
    assert set(sample.origin[b:c]) == {ENVIRONMENT}
    assert words.backend_tokenizer.decode(list(inserted), skip_special_tokens=False) == frame.replace("@", ids[0])
    assert sum(t in words.eos_ids for t in sample.tokens[:c]) == 1 + frame.count(end), "one end after the call"


@pytest.mark.parametrize("mark", ["<|python_tag|>", "[TOOL_CALLS]"])
def test_a_call_that_cannot_be_read_is_counted(mark: str) -> None:
    llama = mark == "<|python_tag|>"
    words = vocabulary(LLAMA if llama else MISTRAL, LLAMA_TOKENS if llama else MISTRAL_TOKENS,
                       "<|eot_id|>" if llama else "</s>")  # fmt: skip

    async def agent(row: Any, client: Client) -> float:
        reply = await client.chat([user("1+2?")], tools=TOOLS)
        assert "tool_calls" not in reply
        return 0.0

    script = (*words.encode_template(mark + '{"name": 3}'), min(words.eos_ids))
    (sample,) = ran(agent, lambda request: script, words)[0].samples
    assert sample.counts["malformed"] == 1 and sample.verdict and not sample.verdict.cause


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (trained(QWEN), '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'),
        (vocabulary(LLAMA, LLAMA_TOKENS, "<|eot_id|>"), '{"name": "add", "parameters": {"a": 1, "b": 2}}'),
    ],
    ids=["qwen", "llama"],
)
def test_a_stored_conversation_has_the_tokens_of_an_agents(words: Tokenizer, call: str, tmp_path: Path) -> None:
    """With its calls as objects, and its tools as the text of JSON. The assistant's tokens are trained."""
    conversation: list[Any] = [user("1+2?")]

    async def agent(row: Any, client: Client) -> float:
        conversation.append(await client.chat(conversation, tools=TOOLS))
        result = {"role": "tool", "tool_call_id": conversation[1]["tool_calls"][0]["id"], "content": "3"}
        conversation.extend([result, await client.chat([*conversation, result], tools=TOOLS)])
        return 1.0

    answers, stop = iter([call, "3."]), min(words.eos_ids)
    (sample,) = ran(agent, lambda request: (*words.encode_template(next(answers)), stop), words)[0].samples
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": conversation, "tools": json.dumps(TOOLS)}) + "\n")
    source, template = str(tmp_path / "rows.jsonl"), find_template("chat", words)
    ((prompt,), _) = read_stored(source, template, RowColumns(), plain=False)
    shown = stored(prompt, words)
    assert (shown.context, shown.tokens) == (sample.context, sample.tokens)
    assert shown.origin == tuple(WRITTEN if o >= 0 else ENVIRONMENT for o in sample.origin)


def test_a_prompt_may_have_calls_and_results(tmp_path: Path) -> None:
    """As TRL has them, with arguments as an object or as JSON; rows that differ in a call are two problems."""
    words = trained(QWEN)
    template = find_template("chat", words)

    def rows(*calls: dict[str, Any], **columns: Any) -> list[Prompt]:
        lines = []
        for i, call in enumerate(calls):
            asked = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]}
            talk = [user("1+2?"), asked, {"role": "tool", "content": "3"}, user("twice?")]
            lines.append({"prompt": talk, "answer": i, **columns})
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        task = RowsTask.read(path, template)
        return sorted((*task.training, *task.held_out), key=lambda prompt: prompt.id)

    first, second = {"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "add", "arguments": {"a": 3, "b": 0}}
    found = rows(first, second)
    text = words.backend_tokenizer.decode(list(found[0].token_ids), skip_special_tokens=False)
    assert '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>' in text
    assert "<tool_response>\n3\n</tool_response>" in text and found[0].token_ids != found[1].token_ids
    assert rows({**first, "arguments": json.dumps(first["arguments"])})[0].token_ids == found[0].token_ids
    described = rows(first, tools=TOOLS)[0]
    talk = described.row["messages"]
    assert described.token_ids == template(talk, TOOLS) != template(talk), "the column tools is in the prompt"
    with pytest.raises(BadData, match="a plain template formats a single text"):
        RowsTask.read(tmp_path / "rows.jsonl", find_template("no", words))
    with pytest.raises(BadData, match="arguments that are not JSON"):
        rows({"name": "add", "arguments": "{"})


def test_a_stored_call_of_mistral_has_its_id(tmp_path: Path) -> None:
    words = vocabulary(MISTRAL, MISTRAL_TOKENS, "</s>")
    call = {"id": "call00001", "function": {"name": "add", "arguments": {"a": 1}}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call00001", "content": "3"}
    talk = [user("1+2?"), asked, result, {"role": "assistant", "content": "3."}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    template = find_template("chat", words)
    ((prompt,), _) = read_stored(str(tmp_path / "rows.jsonl"), template, RowColumns(), plain=False)
    shown = stored(prompt, words)
    text = words.backend_tokenizer.decode(list(shown.tokens), skip_special_tokens=False)
    assert text.startswith('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "call00001"}]</s>[TOOL_RESULTS]')
    assert [words.decode(shown.tokens[a:b]) for a, b in shown.turns][-1] == "3."
