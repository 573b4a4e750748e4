"""The task `coin` and its environment: the guess alone decides, and what follows is worth nothing."""

import asyncio
from collections import Counter
from random import Random
from statistics import mean

import pytest

from groupwise.data import Outcome, Prompt, Verdict
from groupwise.environments import CoinFlip
from groupwise.tasks import named_task
from groupwise.tasks.coin import coin_demonstrations

TASK = named_task("coin").build(lambda text: tuple(map(ord, text)))


def play(guess: str, talk: str, seed: int) -> tuple[object, object]:
    async def conversation() -> tuple[object, object]:
        coin = CoinFlip()
        assert await coin.reset(TASK[0], Random(seed)) is None
        return await coin.step(guess), await coin.step(talk)

    return asyncio.run(conversation())


@pytest.mark.parametrize("guess", ["h", "t", "edge", ""])
def test_the_guess_alone_decides(guess: str) -> None:
    for seed in range(20):
        side = Random(seed).choice("ht")
        outcome, reply = (Outcome.correct, "right\n") if guess == side else (Outcome.wrong, "wrong\n")
        assert {play(guess, talk, seed)[0] for talk in ("", "." * 30, "h", "t")} == {reply}
        assert {play(guess, talk, seed)[1].outcome for talk in ("", "." * 30, "h", "t")} == {outcome}  # type: ignore[attr-defined]
    assert isinstance(play("h", "", 0)[1], Verdict)


def test_both_sides_are_as_likely() -> None:
    assert 0.45 < mean(play("h", ".", seed)[0] == "right\n" for seed in range(400)) < 0.55


def test_held_out_problems_are_others() -> None:
    problems = [TASK[i].text for i in range(len(TASK))]
    assert len(set(problems)) == len(problems) and not {p.text for p in TASK.held_out} & set(problems)
    assert all(isinstance(TASK[i], Prompt) for i in (0, len(TASK) - 1))
    with pytest.raises(IndexError, match="no problem 4096"):
        TASK[len(TASK)]


def test_demonstrations_talk_as_long_after_either_reply() -> None:
    dots: dict[str, list[int]] = {"right\n": [], "wrong\n": []}
    guesses = Counter[str]()
    for row in coin_demonstrations():
        problem, guess, reply, talk = (message["content"] for message in row["messages"])
        assert problem != TASK.held_out[0].text and set(talk) == {"."}
        dots[reply].append(len(talk))
        guesses[guess] += 1
    right, wrong = map(mean, dots.values())
    assert 4 < right < 6 and abs(right - wrong) < 0.3 and set(guesses) == {"h", "t"}
