"""The task `big_sums`: problems, split, and demonstrations, compared with the real environment."""

import asyncio
from collections import Counter
from functools import cache
from hashlib import sha256
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.data import Draw, Outcome, Prompt, ReplyWithCounts, Sample, Sampling, Task
from groupwise.environments import calculator_tools, user_environment
from groupwise.models import find_model, read_tokenizer
from groupwise.rollout import RolloutSetting, SinglePromptSampler, Turns
from groupwise.tasks import BigSums
from groupwise.tasks.big_sums import KINDS, PROBLEMS, call, numbered, sum_demonstrations, with_wrong_digit
from groupwise.verifiers import LastNumber
from tests.rollout.fakes import FakeEngine

TASK = BigSums().build(lambda text: tuple(map(ord, text)))


@cache
def training() -> list[Prompt]:
    return [TASK[i] for i in range(len(TASK))]


@cache
def shown() -> list[list[dict[str, str]]]:
    """The messages of a thousand demonstrations."""
    return [row["messages"] for row in islice(sum_demonstrations(), 1000)]


def split(problem: str) -> tuple[list[int], str]:
    """The three numbers of a problem, and the two signs between them."""
    assert len(problem) == 9 and problem[8] == "="
    return [int(problem[i : i + 2]) for i in (0, 3, 6)], problem[2] + problem[5]


def worth(*turns: str, problem: str = "34*58+91=") -> Sample:
    """The conversation in which a model says these, with the environment and the verifier of the recipe."""
    tokenizer, message = read_tokenizer(find_model("blank")), iter(turns)
    prompt = Prompt(problem, tokenizer.encode(problem), problem, {"answer": str(eval(problem[:-1]))})
    setting = RolloutSetting(
        engine=FakeEngine(lambda ask: (*tokenizer.encode(next(message)), *tokenizer.eos_ids)),
        verifier=LastNumber(),
        tokenizer=tokenizer,
        sampling=Sampling(max_tokens=96),
        seed=0,
        create_environment=user_environment(calculator_tools),
    )
    sampler = SinglePromptSampler(draw=Draw(0, prompt, 1), rollout_setting=setting)
    return asyncio.run(Turns()(sampler.draw, sampler)).samples[0]


# Problems


def test_is_a_task() -> None:
    assert isinstance(TASK, Task)


@given(st.integers(0, PROBLEMS - 1))
def test_every_number_has_another_problem(number: int) -> None:
    values, signs = split(numbered(number))
    assert all(10 <= value <= 99 for value in values)
    again = 0
    for value, sign in zip(values, ("", *signs)):
        again = (again * 3 + "+-*".index(sign) if sign else again) * 90 + value - 10
    assert again == number


def test_every_prompt_is_valid_and_has_its_answer() -> None:
    for prompt in (*training(), *TASK.held_out):
        split(prompt.text)
        assert prompt.row == {"answer": str(eval(prompt.text[:-1]))}
        assert prompt.id == prompt.text and prompt.token_ids == tuple(map(ord, prompt.text))


def test_training_and_held_out_problems_are_disjoint() -> None:
    ids, held_out = {p.id for p in training()}, {p.id for p in TASK.held_out}
    assert len(training()) == len(TASK) == len(ids) == 16_384
    assert len(TASK.held_out) == len(held_out) == 512
    for problems, held in ((ids, False), (held_out, True)):
        assert all((int(sha256(p.encode()).hexdigest()[:16], 16) % 10 == 0) == held for p in problems)


def test_an_index_always_gives_the_same_problem() -> None:
    # Published results hang on these: a change of the order is a change of the task.
    assert [TASK[i].text for i in (0, 1, 16_383)] == ["10+10+10=", "94*95*48=", "10-82*34="]
    assert [p.text for p in TASK.held_out[:3]] == ["39-17-77=", "84*87-34=", "19+90*49="]


@pytest.mark.parametrize("index", [-1, 16_384])
def test_an_index_out_of_range_raises(index: int) -> None:
    with pytest.raises(IndexError):
        TASK[index]


# Demonstrations


def test_tool_messages_equal_the_replies_of_the_environment() -> None:
    tools = calculator_tools()
    for talk in shown()[:200]:
        for message, reply in zip(talk[1::2], [*talk[2::2], None]):
            assert message["role"] == "assistant" and (reply is None or reply["role"] == "tool")
            assert asyncio.run(tools.step(message["content"])) == (reply and reply["content"])


def test_demonstrations_are_of_training_problems_and_end_with_a_number() -> None:
    for user, *_, last in shown():
        assert int(sha256(user["content"].encode()).hexdigest()[:16], 16) % 10 != 0
        assert last["content"].removeprefix("#").lstrip("-").isdecimal()


def kind(talk: list[dict[str, str]]) -> str:
    problem, turns = talk[0]["content"][:-1], [m["content"] for m in talk[1::2]]
    if len(turns) == 1:
        return "guess"
    if not turns[0].endswith("</tool_call>"):
        return "mended" if len(turns) == 3 else "given up"
    return "call" if turns[0] == call(problem) else "slip"


def test_kinds_have_their_frequencies_and_all_but_slips_are_right() -> None:
    frequencies = Counter(map(kind, shown()))
    assert frequencies.keys() == KINDS.keys()
    for name, often in KINDS.items():
        assert frequencies[name] / len(shown()) == pytest.approx(often / sum(KINDS.values()), abs=0.04)
    for talk in shown():
        right = talk[-1]["content"] == f"#{eval(talk[0]['content'][:-1])}"
        assert right or kind(talk) == "slip"


def test_demonstrations_are_always_the_same() -> None:
    assert [row["messages"] for row in islice(sum_demonstrations(), 50)] == shown()[:50]
    assert shown()[0][0]["content"] == "24-77+78="


@given(st.integers(0, 2**31))
def test_a_slip_changes_one_digit_and_leaves_a_valid_sum(seed: int) -> None:
    before = numbered(Random(seed).randrange(PROBLEMS))
    after = with_wrong_digit(before[:-1], Random(seed)) + "="
    split(after)
    assert sum(a != b for a, b in zip(before, after)) == 1


# What a conversation is worth


def test_a_call_and_the_tools_answer_are_right() -> None:
    had = worth(call("34*58+91"), "#2063")
    assert had.verdict is not None and had.verdict.outcome is Outcome.correct
    assert had.text == f"{call('34*58+91')}<tool_response>\n2063\n</tool_response>#2063"
    assert had.counts == {"calls": 1, "malformed": 0, "errors": 0, "failed": 0}


@pytest.mark.parametrize(
    ("turns", "outcome"),
    [
        (("#2063",), Outcome.correct),  # the number alone is graded
        (("#2064",), Outcome.wrong),
        (("#",), Outcome.malformed),
        ((call("34*58+92"), "#2064"), Outcome.wrong),
        ((call("34*58+91"), "#2064"), Outcome.wrong),
        ((call("34*58+91")[:-12], call("34*58+91"), "#2063"), Outcome.correct),
        ((call("34*58+91")[:-12], "#5"), Outcome.wrong),
        ((call("34*58+"), "#5"), Outcome.wrong),
        ((call("34*58+91"),) * 9, Outcome.malformed),  # never an answer, for any reply of the tool
    ],
)
def test_verdicts_on_other_conversations(turns: tuple[str, ...], outcome: Outcome) -> None:
    verdict = worth(*turns).verdict
    assert verdict is not None and verdict.outcome is outcome


def test_every_reply_of_the_environment_has_tokens() -> None:
    tokenizer = read_tokenizer(find_model("blank"))
    for message in (call("1/0"), call('"'), "<tool_call>{", call("é"), "<tool_call>[]</tool_call>", call("1/3")):
        words = asyncio.run(calculator_tools().step(message))
        assert isinstance(words, ReplyWithCounts) and tokenizer.decode(tokenizer.encode(words)) == words
