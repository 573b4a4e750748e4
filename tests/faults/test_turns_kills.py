"""A run killed while environments answer: what was heard is heard again, and no question is asked twice."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from groupwise.commands.train import run_from
from groupwise.config.recipe import Evaluate, Save
from groupwise.data import CountedText, Observation, Prompt, Sampling
from groupwise.rollout import Turns
from groupwise.training.build import Runtime
from tests.faults.small_runs import EVERY, Quick, alive, begun, forked, left, ready

TALKS = replace(
    EVERY,
    environment="of:itself",
    iterations=2,
    method=replace(EVERY.method, strategy=Turns(most=2)),
    sampling=Sampling(max_tokens=40),
    evaluate=Evaluate(every=2, problems=2, strategy=Turns(most=2)),
)
REMEMBERED = "0123456789"


@dataclass
class Sums:
    """Adds up the digits that it hears: what it says depends on all that it was told."""

    asked: Callable[[], None]
    total: int = 0

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        self.asked()
        self.total = random.randrange(10)
        return None

    async def step(self, said: str) -> Observation:
        self.asked()
        self.total += sum(map(int, filter(REMEMBERED.__contains__, said)))
        return CountedText(f"{self.total};", total=self.total)

    async def recall(self, said: str, reply: Observation) -> Observation:
        self.total += sum(map(int, filter(REMEMBERED.__contains__, said)))
        return f"{self.total};"


@dataclass
class Live:
    """Says another number every time that it is asked, in this life or another: a clock, a search, a die."""

    asked: Callable[[], int]

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        return None

    async def step(self, said: str) -> Observation:
        return f"{self.asked() % 10};"

    async def recall(self, said: str, reply: Observation) -> Observation:
        return reply


def run(directory: Path, place: Runtime, environment: Any, death: int = 0) -> int:
    """In a fork: the run to its end, or to its death before the n-th question. Every question leaves a byte."""
    questions = 0

    def asked() -> int:
        nonlocal questions
        questions += 1
        if questions == death:
            os.kill(os.getpid(), signal.SIGKILL)
        with directory.with_suffix(".asked").open("ab") as file:
            file.write(b".")
            return file.tell()

    place.buffer.environment = lambda: environment(asked)
    return run_from(directory, place, disk=Quick())


def go_on(directory: Path, place: Runtime, environment: Any, death: int = 0) -> int:
    return forked(lambda: run(directory, place, environment, death), directory.with_suffix(".log"))


@pytest.fixture(scope="module")
def place() -> Runtime:
    return ready(replace(TALKS, environment="", method=EVERY.method, evaluate=EVERY.evaluate))


def talking(place: Runtime) -> Runtime:
    return replace(place, recipe=TALKS)


def questions(run: Path) -> list[tuple[str, str]]:
    """All that the run asked, each with the iteration in which it did."""
    files = sorted((run / "journal").iterdir())
    return [(p.stem, json.loads(line)["question"]) for p in files for line in p.read_text().splitlines()]


def test_a_run_killed_at_any_question_ends_with_the_bits_of_one_never_killed(place: Runtime, tmp_path: Path) -> None:
    place = talking(place)
    straight = begun(tmp_path / "straight", TALKS)
    assert go_on(straight, place, Sums) == 0
    alive(straight, TALKS)
    whole, asked = left(straight), straight.with_suffix(".asked").stat().st_size
    texts = [json.loads(x)["text"] for x in (straight / "samples" / "000002.jsonl").read_text().splitlines()]
    assert asked > 80 and sum(";" in text for text in texts) > 4
    lines = [json.loads(x) for x in (straight / "metrics.jsonl").read_text().splitlines()]
    assert all(1 < x["turns/mean"] <= x["turns/max"] == 2 and x["counts/total"] > 1 for x in lines[1:])
    assert lines[0]["eval/turns/mean"] >= 1 and 0 < lines[-1]["eval/turns/environment_tokens"] < 0.5
    for death in (asked // 3, asked):
        directory = begun(tmp_path / str(death), TALKS)
        assert go_on(directory, place, Sums, death) == -signal.SIGKILL
        go_on(directory, place, Sums, 5)  # and again, soon after it came back
        assert go_on(directory, place, Sums) == 0
        assert left(directory) == whole, death


def test_what_a_live_environment_said_before_a_kill_is_not_asked_again(place: Runtime, tmp_path: Path) -> None:
    recipe = replace(TALKS, save=Save(every=1, keep=9))  # so that the whole journal stays
    place = replace(place, recipe=recipe)
    directory = begun(tmp_path / "run", recipe)
    first = directory / "journal" / "000000.jsonl"
    heard: list[bytes] = []
    for death in (7, 30):
        assert go_on(directory, place, Live, death) == -signal.SIGKILL
        heard.append(first.read_bytes())
    assert go_on(directory, place, Live) == 0
    alive(directory, recipe)
    for before, after in pairwise([*heard, first.read_bytes()]):
        assert after.startswith(before)
    assert max(Counter(questions(directory)).values()) == 1  # so no answer is lost, and none is given twice
