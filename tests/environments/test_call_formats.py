"""Tool calls in the formats of Hermes, Llama and Mistral."""

import pytest

from groupwise.environments import HermesCalls, LlamaCalls, MalformedCall, MistralCalls, ToolCall, call_format

ADD = ToolCall("add", {"a": 1})
CASES = [
    (HermesCalls(), 'Sure. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "Sure.", [ADD]),
    (HermesCalls(), "no call", "no call", []),
    (LlamaCalls(), '{"name": "add", "parameters": {"a": 1}}', "", [ADD]),
    (LlamaCalls(), '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "b", "parameters": {}}', "",
     [ADD, ToolCall("b", {})]),
    (MistralCalls(), 'Well[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "Well", [ADD]),
    (MistralCalls(), '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]b[ARGS]{}', "", [ADD, ToolCall("b", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("format", "turn", "text", "calls"), CASES)
def test_calls_of_each_format(format: HermesCalls, turn: str, text: str, calls: list[ToolCall]) -> None:
    assert format.parse(turn) == (text, calls)


def test_text_is_text_and_a_broken_call_is_an_error() -> None:
    for turn in ('{"answer": 3}', '{"name": "add"', "{}", "[1]"):
        assert LlamaCalls().parse(turn) == (turn, [])
    for format, turn in (
        (LlamaCalls(), '<|python_tag|>{"name": "add"'),
        (LlamaCalls(), "<|python_tag|>" + '{"name": "a", "parameters": {}};' * 9),
        (MistralCalls(), "[TOOL_CALLS][{]"),
        (MistralCalls(), "[TOOL_CALLS]add[ARGS][1]"),
        (HermesCalls(), "<tool_call>{}</tool_call>"),
    ):
        with pytest.raises(MalformedCall):
            format.parse(turn)


def test_the_format_is_that_of_the_template() -> None:
    assert call_format("{{ tools }}<tool_call>") == HermesCalls() == call_format("no tools")
    assert call_format("Environment: ipython <|python_tag|>") == LlamaCalls()
