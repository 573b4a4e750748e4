"""Samples on a terminal: speakers, turns, escaped control characters."""

from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.commands.sample_text import episodes_of, format_episode, format_sample, turns_of
from groupwise.data import ENVIRONMENT, TEMPLATE, AgentMessage, AgentRequest, Finish, Outcome, Sample, Verdict

PARTS = [(ENVIRONMENT, "hello "), (0, "37"), (0, "*2"), (TEMPLATE, "<|user|>"), (ENVIRONMENT, "74\x1b[2J"),
          (ENVIRONMENT, ""), (TEMPLATE, "<|me|>"), (3, "so\nenvironment:\n 75")]  # fmt: skip


def conversation(verdict: Verdict | None = None, finish: Finish | None = Finish.stop) -> Sample:
    """A sample with one token for each of PARTS."""
    sample, ends = Sample(context=(9,), stream=(0,)), []
    for origin, text in PARTS:
        sample = sample.with_tokens((5,), (origin,), (-1.0,))
        ends.append(len(text) + (ends[-1] if ends else 0))
    sample = (
        sample.with_text("".join(text for _, text in PARTS), tuple(ends)).with_finish(finish).add_counts({"calls": 1.5})
    )
    return sample.with_verdict(verdict) if verdict else sample


def test_turns_without_template_tokens() -> None:
    turns = [("environment", "hello "), ("model", "37*2"), ("environment", "74\x1b[2J"), ("model", PARTS[-1][1])]
    assert turns_of(conversation()) == turns
    cut = conversation().insert((7, 7), ENVIRONMENT)  # these tokens have no text
    assert turns_of(cut) == turns


def test_text_imitates_no_speaker_and_control_characters_are_escaped() -> None:
    assert format_sample(conversation()).split("\n") == [
        "environment:", "  hello ", "model:", "  37*2", "environment:", r"  74\x1b[2J",
        "model:", "  so", "  environment:", "   75", "ended by stop: 2 turns, 8 tokens, calls 1.5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "last"),
    [
        (Verdict(Outcome.correct, 0.5, feedback="won\x07"), r"correct, score 0.5: won\x07"),
        (Verdict(Outcome.unverifiable, cause="Mine.step: late"), "aborted: Mine.step: late"),
        (Verdict(Outcome.wrong), "wrong"),
    ],
)
def test_the_last_line_is_the_environment_s_verdict(verdict: Verdict, last: str) -> None:
    assert format_sample(conversation(verdict)).split("\n")[-1] == last


def test_an_answer_without_turns_is_printed_as_it_is() -> None:
    assert format_sample(Sample(context=(1,), stream=(0,), text="7*5=\x1b35\n")) == "7*5=\\x1b35\n"


def of_agent(role: str, parent: int | None, *calls: tuple[int, str, str]) -> Sample:
    """A sample with a token for each call: its number, its message, and the model's text."""
    texts, ends = [text for _, _, text in calls], [0]
    for text in texts:
        ends.append(ends[-1] + len(text))
    requests = tuple(AgentRequest(n, (AgentMessage("user", m),), i, i + 1) for i, (n, m, _) in enumerate(calls))
    sample = Sample(context=(9,), stream=(0,), role=role, parent=parent, requests=requests, finish=Finish.stop)
    n = len(calls)
    return sample.with_tokens((5,) * n, (0,) * n, (-1.0,) * n).with_text("".join(texts), tuple(ends[1:]))


def test_an_episode_is_printed_request_by_request() -> None:
    answer = of_agent("answer", None, (0, "a", "one"), (2, "model:\nc", "three\x1b")).with_verdict(
        Verdict(Outcome.correct)
    )
    other, thread = of_agent("answer", None, (0, "d", "four")), of_agent("thread", 0, (1, "b", "two"))
    assert episodes_of([answer, other, thread]) == [(answer, thread), (other,)]
    assert format_episode([answer, thread]).split("\n") == [
        "request 1, conversation 1", "user:", "  a", "model:", "  one",
        "request 2, conversation 2, from request 1", "user:", "  b", "model:", "  two",
        "request 3, conversation 1", "user:", "  model:", "  c", "model:", r"  three\x1b",
        "answer: conversation 1, ended by stop: 3 requests, 2 conversations, 3 tokens", "correct",
    ]  # fmt: skip


GAME = """
from groupwise.data import Outcome, Verdict

class Guess:
    def reset(self, prompt, random):
        self.answer = prompt.row["answer"]
        return "?"

    def step(self, reply):
        return Verdict(Outcome.wrong, feedback=f"it was {self.answer}")
"""
TURNS = ["--environment", "game:Guess", "--method.strategy", "Turns", "--evaluate.strategy", "Turns"]


def test_conversations_with_a_user_environment(home: Path, capsys) -> None:
    Path("game.py").write_text(GAME.replace("?", ";"))
    words = ["sample", "calculator", "7*5=", *TURNS, "--sampling.max_tokens", "30", "--use", "game.py"]
    assert main([*words, "-n", "2", "--answer", "3\x1b5"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["-- 1 of 2", "environment:", "  ;", "model:"] and "-- 2 of 2" in lines
    assert [line for line in lines if line.startswith("wrong")] == [r"wrong: it was 3\x1b5"] * 2
    assert main(words) == 0  # without --answer
    assert capsys.readouterr().out.splitlines()[-1] == "aborted: Guess.reset: game.py:6 in reset: KeyError: 'answer'"
    assert main(["sample", "calculator", "7*5=", "--environment", "calculator_tools", *TURNS[2:]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("ended by stop: 1 turn, ")  # ungraded
    assert main(words[:-2]) == 2
    assert "add --use game.py to the command" in capsys.readouterr().err
