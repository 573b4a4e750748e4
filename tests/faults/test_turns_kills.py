"""A run killed during conversations: logged observations are replayed, and no environment is queried twice."""

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

from groupwise.config.recipe import Evaluate, Save
from groupwise.config.resolve_devices import resolved
from groupwise.data import Observation, Prompt, ReplyWithCounts, Sampling
from groupwise.rollout import Turns
from groupwise.training.build_run import RunObjects
from tests.faults.small_runs import EVERY, Quick, alive, begun, forked, left, ready, run_from

RECIPE = replace(
    EVERY,
    environment="of:itself",
    iterations=2,
    method=replace(EVERY.method, strategy=Turns(max_turns=2)),
    sampling=Sampling(max_tokens=40),
    evaluate=Evaluate(every=2, problems=2, strategy=Turns(max_turns=2)),
)
DIGITS = "0123456789"


@dataclass
class Sums:
    """Sums the digits of all messages, so each observation depends on the whole conversation."""

    on_call: Callable[[], None]
    total: int = 0

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        self.on_call()
        self.total = random.randrange(10)
        return None

    async def step(self, message: str) -> Observation:
        self.on_call()
        self.total += sum(map(int, filter(DIGITS.__contains__, message)))
        return ReplyWithCounts(f"{self.total};", total=self.total)

    async def restore(self, message: str, observation: Observation) -> Observation:
        self.total += sum(map(int, filter(DIGITS.__contains__, message)))
        return f"{self.total};"


@dataclass
class Live:
    """Returns another number at each call, also after a restart, as a clock or a search does."""

    on_call: Callable[[], int]

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        return None

    async def step(self, message: str) -> Observation:
        return f"{self.on_call() % 10};"

    async def restore(self, message: str, observation: Observation) -> Observation:
        return observation


def run(directory: Path, objects: RunObjects, environment: Any, death: int = 0) -> int:
    """In a fork: run to the end, or to a kill before the n-th call of an environment. Each call appends a byte."""
    calls = 0

    def on_call() -> int:
        nonlocal calls
        calls += 1
        if calls == death:
            os.kill(os.getpid(), signal.SIGKILL)
        with directory.with_suffix(".calls").open("ab") as file:
            file.write(b".")
            return file.tell()

    objects = replace(
        objects, rollout_setting=replace(objects.rollout_setting, create_environment=lambda: environment(on_call))
    )
    return run_from(directory, objects, disk=Quick()).exit_code


def forked_run(directory: Path, objects: RunObjects, environment: Any, death: int = 0) -> int:
    return forked(lambda: run(directory, objects, environment, death), directory.with_suffix(".log"))


@pytest.fixture(scope="module")
def objects() -> RunObjects:
    return ready(replace(RECIPE, environment="", method=EVERY.method, evaluate=EVERY.evaluate))


def with_turns(objects: RunObjects) -> RunObjects:
    return replace(objects, recipe=resolved(RECIPE))


def queries(run: Path) -> list[tuple[str, str]]:
    """The keys of all log entries, each with its iteration."""
    files = sorted((run / "replay").iterdir())
    return [(p.stem, json.loads(line)["question"]) for p in files for line in p.read_text().splitlines()]


def test_a_run_killed_at_any_call_ends_with_the_bits_of_an_uninterrupted_run(
    objects: RunObjects, tmp_path: Path
) -> None:
    objects = with_turns(objects)
    straight = begun(tmp_path / "straight", RECIPE)
    assert forked_run(straight, objects, Sums) == 0
    alive(straight, RECIPE)
    whole, calls = left(straight), straight.with_suffix(".calls").stat().st_size
    texts = [json.loads(x)["text"] for x in (straight / "samples" / "000002.jsonl").read_text().splitlines()]
    assert calls > 80 and sum(";" in text for text in texts) > 4
    lines = [json.loads(x) for x in (straight / "metrics.jsonl").read_text().splitlines()]
    assert all(1 < x["turns/mean"] <= x["turns/max"] == 2 and x["counts/total"] > 1 for x in lines[1:])
    assert lines[0]["eval/turns/mean"] >= 1 and 0 < lines[-1]["eval/turns/environment_tokens"] < 0.5
    for death in (calls // 3, calls):
        directory = begun(tmp_path / str(death), RECIPE)
        assert forked_run(directory, objects, Sums, death) == -signal.SIGKILL
        forked_run(directory, objects, Sums, 5)  # and again, soon after the restart
        assert forked_run(directory, objects, Sums) == 0
        assert left(directory) == whole, death


def test_observations_before_a_kill_are_not_queried_again(objects: RunObjects, tmp_path: Path) -> None:
    recipe = replace(RECIPE, save=Save(every=1, keep=9))  # so the whole replay log stays
    objects = replace(objects, recipe=resolved(recipe))
    directory = begun(tmp_path / "run", recipe)
    first = directory / "replay" / "000000.jsonl"
    logs: list[bytes] = []
    for death in (7, 30):
        assert forked_run(directory, objects, Live, death) == -signal.SIGKILL
        logs.append(first.read_bytes())
    assert forked_run(directory, objects, Live) == 0
    alive(directory, recipe)
    for before, after in pairwise([*logs, first.read_bytes()]):
        assert after.startswith(before)
    assert max(Counter(queries(directory)).values()) == 1  # no observation is lost, and none is queried twice
