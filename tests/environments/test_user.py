"""Environments of one's own: every way in which a call can fail is a verdict with its cause, and costs its deadline."""

import asyncio
import sys
import threading
from random import Random
from typing import Any

import pytest

from groupwise.data import Environment, Observation, Outcome, Prompt, Usage, Verdict, WorkerLost
from groupwise.environments import user_environment
from groupwise.environments.user import AT_ONCE, LEFT, LONGEST

PROMPT = Prompt("p", (1,), text="2+3=", given={"answer": 5})


class Plain:
    """Says what it is told to say; a callable is called."""

    opening: Any = None
    says: Any = None

    def reset(self, prompt: Prompt, random: Random) -> Any:
        return self.opening

    def step(self, said: str) -> Any:
        return self.says(said) if callable(self.says) else self.says


class Async:
    says: Any = None

    async def reset(self, prompt: Prompt, random: Random) -> Any:
        return None

    async def step(self, said: str) -> Any:
        answer = self.says(said) if callable(self.says) else self.says
        return await answer if asyncio.iscoroutine(answer) else answer


def having(kind: type, **attributes: Any) -> type:
    return type("Mine", (kind,), attributes)


def told(made: Any, *, said: str = "5", deadline: float = 5.0) -> tuple[Observation, Observation]:
    async def go() -> tuple[Observation, Observation]:
        world = user_environment(made, deadline=deadline)()
        assert isinstance(world, Environment)
        return await world.reset(PROMPT, Random(3)), await world.step(said)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", [Plain, Async])
def test_words_the_end_and_a_verdict(kind: type) -> None:
    won = Verdict(Outcome.correct, 0.5)
    assert told(having(kind, says=lambda self, said: said * 2)) == (None, "55")
    assert told(having(kind, says="é\ud800")) == (None, "é\ud800")
    assert told(having(kind, says=None)) == (None, None)
    assert told(having(kind, says=won)) == (None, won)


def test_each_conversation_has_an_environment_of_its_own_which_knows_its_prompt() -> None:
    class Guess:
        def reset(self, prompt: Prompt, random: Random) -> str:
            self.number, self.turn = random.randrange(1000) + prompt.given["answer"], 0
            return prompt.text

        def step(self, said: str) -> str:
            self.turn += 1
            return f"{self.number} {self.turn} {said}"

    async def go() -> list[Observation]:
        make = user_environment(Guess)
        a, b = make(), make()
        first = [await a.reset(PROMPT, Random(3)), await b.reset(PROMPT, Random(3))]
        return [*first, await a.step("x"), await b.step("y"), await a.step("z")]

    n = Random(3).randrange(1000) + 5
    assert asyncio.run(go()) == ["2+3=", "2+3=", f"{n} 1 x", f"{n} 1 y", f"{n} 2 z"]


def raises(error: BaseException) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("kind", [Plain, Async])
@pytest.mark.parametrize(
    ("says", "cause"),
    [
        (raises(ValueError("no such door")), "Mine.step: ValueError: no such door"),
        (raises(TimeoutError("the server")), "Mine.step: TimeoutError: the server"),
        (7, "Mine.step: it returned int: expected text, None or a Verdict"),
        (b"7", "Mine.step: it returned bytes: expected text, None or a Verdict"),
        (("7", True), "Mine.step: it returned tuple: expected text, None or a Verdict"),
        ("x" * (LONGEST + 1), f"Mine.step: it said {LONGEST + 1} characters"),
        (Verdict(Outcome.correct, 1.5), "it returned the score 1.5: expected one in [0, 1]"),
        (Verdict(Outcome.wrong, parts={"style": float("nan")}), "its part style is not finite"),
    ],
)
def test_what_is_no_answer_is_unverifiable(kind: type, says: Any, cause: str) -> None:
    _, reply = told(having(kind, says=says))
    assert reply == Verdict(Outcome.unverifiable, cause=cause)


def test_leaving_the_process_is_no_answer() -> None:
    _, reply = told(having(Plain, says=lambda self, said: sys.exit(3)))
    assert reply == Verdict(Outcome.unverifiable, cause="Mine.step: RuntimeError: SystemExit(3)")


def test_one_that_cannot_be_made_or_begun() -> None:
    def refuses(self: Any) -> None:
        raise OSError("no licence")

    first, _ = told(having(Plain, __init__=refuses))
    assert isinstance(first, Verdict) and first.cause == "Mine.__init__: OSError: no licence"
    first, _ = told(having(Plain, reset=raises(KeyError("level"))))
    assert isinstance(first, Verdict) and first.cause == "Mine.reset: KeyError: 'level'"


def test_one_that_hangs_costs_its_deadline_and_no_more() -> None:
    gate = threading.Event()
    _, plain = told(having(Plain, says=lambda self, said: gate.wait()), deadline=0.05)
    _, async_ = told(having(Async, says=lambda self, said: asyncio.sleep(1000)), deadline=0.05)
    gate.set()
    assert plain == async_ == Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 0.05 s")


def test_after_eight_calls_that_never_came_back_it_is_given_up() -> None:
    gate = threading.Event()

    async def go(kind: type, says: Any) -> list[Any]:
        make = user_environment(having(kind, says=says), deadline=0.25)
        worlds = [make() for _ in range(LEFT + 1)]
        for world in worlds:
            await world.reset(PROMPT, Random(3))
        return [await _caught(world.step("5")) for world in worlds]

    *eight, last = asyncio.run(go(Plain, lambda self, said: gate.wait()))
    gate.set()
    assert {type(x) for x in eight} == {Verdict}
    assert isinstance(last, WorkerLost) and "8 calls of the environment Mine took more than 0.25 s" in str(last)
    # One that awaits can be ended, and nothing of it is left.
    assert {type(x) for x in asyncio.run(go(Async, lambda self, said: asyncio.sleep(1000)))} == {Verdict}


async def _caught(call: Any) -> Any:
    try:
        return await call
    except WorkerLost as error:
        return error


def test_plain_calls_do_not_wait_for_each_other_and_are_not_too_many() -> None:
    most, now = 0, 0
    lock, together = threading.Lock(), threading.Barrier(AT_ONCE)

    def step(self: Any, said: str) -> str:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(timeout=30)  # passes only if so many are inside at once
        with lock:
            now -= 1
        return said

    async def go() -> list[Observation]:
        make = user_environment(having(Plain, step=step), deadline=60.0)
        worlds = [make() for _ in range(2 * AT_ONCE)]
        await asyncio.gather(*(world.reset(PROMPT, Random(3)) for world in worlds))
        return await asyncio.gather(*(world.step(str(i)) for i, world in enumerate(worlds)))

    assert asyncio.run(go()) == [str(i) for i in range(2 * AT_ONCE)]
    assert most == AT_ONCE


def test_what_it_hears_again_after_a_kill() -> None:
    heard: list[tuple[str, Observation]] = []

    def recall(self: Any, said: str, reply: Observation) -> None:
        heard.append((said, reply))

    async def go(made: Any) -> Observation:
        world = user_environment(made)()
        await world.reset(PROMPT, Random(3))
        return await world.restore("5", "6")

    assert asyncio.run(go(having(Plain, says="7"))) == "7"  # asked again
    assert asyncio.run(go(having(Plain, says="7", recall=recall))) == "6" and heard == [("5", "6")]
    failed = asyncio.run(go(having(Plain, recall=raises(ValueError("lost")))))
    assert isinstance(failed, Verdict) and failed.cause == "Mine.recall: ValueError: lost"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (having(Plain, __init__=lambda self, level: None), "cannot be made"),
        (type("Mine", (), {"reset": Plain.reset}), "has no step"),
        (type("Mine", (), {"step": Plain.step}), "has no reset"),
    ],
)
def test_what_is_no_environment_is_refused_before_a_run(made: Any, says: str) -> None:
    with pytest.raises(Usage, match=f"the environment .*{says}"):
        user_environment(made)


def test_a_function_may_make_them() -> None:
    made = having(Plain, says="6")

    def make() -> Any:
        return made()

    assert told(make) == (None, "6")
    assert told(lambda: 7)[0] == Verdict(
        Outcome.unverifiable, cause="test_a_function_may_make_them.<locals>.<lambda>.reset: TypeError: it has no reset"
    )
