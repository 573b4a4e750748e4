"""Environments from a user's class: each failure of a method becomes a verdict with its cause."""

import asyncio
import re
import sys
import threading
from random import Random
from typing import Any

import pytest

from groupwise.core import Usage, WorkerLost
from groupwise.data import Environment, Observation, Outcome, Prompt, Verdict
from groupwise.environments import user_environment
from groupwise.environments.user_environment import MAX_CHARACTERS, MAX_HUNG, MAX_THREADS
from tests.processes import PATIENCE

PROMPT = Prompt("p", (1,), text="2+3=", row={"answer": 5})


class Plain:
    """A class with plain methods; `reply` is the observation, or a function of the message."""

    opening: Any = None
    reply: Any = None

    def reset(self, prompt: Prompt, random: Random) -> Any:
        return self.opening

    def step(self, message: str) -> Any:
        return self.reply(message) if callable(self.reply) else self.reply


class Async:
    """The same with async methods."""

    reply: Any = None

    async def reset(self, prompt: Prompt, random: Random) -> Any:
        return None

    async def step(self, message: str) -> Any:
        answer = self.reply(message) if callable(self.reply) else self.reply
        return await answer if asyncio.iscoroutine(answer) else answer


def having(kind: type, **attributes: Any) -> type:
    return type("Mine", (kind,), attributes)


def observations(make: Any, *, message: str = "5", deadline: float = PATIENCE) -> tuple[Observation, Observation]:
    """The observations of `reset` and of a step, which alone has the `deadline`."""

    async def go() -> tuple[Observation, Observation]:
        environment = user_environment(make, deadline=PATIENCE)()
        assert isinstance(environment, Environment)
        opening = await environment.reset(PROMPT, Random(3))
        environment._threads.deadline = deadline
        return opening, await environment.step(message)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", [Plain, Async])
def test_text_the_end_and_a_verdict(kind: type) -> None:
    won = Verdict(Outcome.correct, 0.5)
    assert observations(having(kind, reply=lambda self, message: message * 2)) == (None, "55")
    assert observations(having(kind, reply="é\ud800")) == (None, "é\ud800")
    assert observations(having(kind, reply=None)) == (None, None)
    assert observations(having(kind, reply=won)) == (None, won)


def test_each_conversation_has_its_own_environment() -> None:
    class Guess:
        def reset(self, prompt: Prompt, random: Random) -> str:
            self.number, self.turn = random.randrange(1000) + prompt.row["answer"], 0
            return prompt.text

        def step(self, message: str) -> str:
            self.turn += 1
            return f"{self.number} {self.turn} {message}"

    async def go() -> list[Observation]:
        make = user_environment(Guess, deadline=PATIENCE)
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
    ("reply", "cause"),
    [
        (raises(ValueError("no such door")), "Mine.step: ValueError: no such door"),
        (raises(TimeoutError("the server")), "Mine.step: TimeoutError: the server"),
        (7, "Mine.step: it returned int: expected text, None or a Verdict"),
        (b"7", "Mine.step: it returned bytes: expected text, None or a Verdict"),
        (("7", True), "Mine.step: it returned tuple: expected text, None or a Verdict"),
        ("x" * (MAX_CHARACTERS + 1), f"Mine.step: it returned {MAX_CHARACTERS + 1} characters"),
        (Verdict(Outcome.correct, float("inf")), "it returned the score inf: expected a finite number"),
        (
            Verdict(Outcome.wrong, subscores={"style": float("nan")}),
            "it returned the subscore style, which is not finite",
        ),
    ],
)
def test_an_exception_or_an_invalid_observation_is_unverifiable(kind: type, reply: Any, cause: str) -> None:
    _, observation = observations(having(kind, reply=reply))
    assert isinstance(observation, Verdict)
    assert (observation.outcome, without_place(observation.cause)) == (Outcome.unverifiable, cause)


def without_place(cause: str) -> str:
    """A cause without the file and line of the exception."""
    return re.sub(r"\w+\.py:\d+ in \w+: ", "", cause)


def test_sys_exit_is_unverifiable() -> None:
    _, reply = observations(having(Plain, reply=lambda self, message: sys.exit(3)))
    assert isinstance(reply, Verdict) and without_place(reply.cause) == "Mine.step: RuntimeError: SystemExit(3)"


def test_exceptions_of_init_and_reset() -> None:
    def fails(self: Any) -> None:
        raise OSError("no licence")

    first, _ = observations(having(Plain, __init__=fails))
    assert isinstance(first, Verdict) and without_place(first.cause) == "Mine.__init__: OSError: no licence"
    assert "Mine.__init__: test_user.py:" in first.cause and " in fails: OSError" in first.cause  # the user's line
    first, _ = observations(having(Plain, reset=raises(KeyError("level"))))
    assert isinstance(first, Verdict) and without_place(first.cause) == "Mine.reset: KeyError: 'level'"


def test_a_method_that_hangs_costs_only_its_deadline() -> None:
    gate = threading.Event()
    _, plain = observations(having(Plain, reply=lambda self, message: gate.wait()), deadline=0.05)
    _, async_ = observations(having(Async, reply=lambda self, message: asyncio.sleep(1000)), deadline=0.05)
    gate.set()
    assert plain == async_ == Verdict(Outcome.unverifiable, cause="Mine.step: no answer within 0.05 s")


def test_after_eight_hung_calls_a_worker_is_lost() -> None:
    gate = threading.Event()

    async def go(kind: type, reply: Any) -> list[Any]:
        make = user_environment(having(kind, reply=reply), deadline=PATIENCE)
        environments = [make() for _ in range(MAX_HUNG + 1)]
        for environment in environments:
            await environment.reset(PROMPT, Random(3))
        environment._threads.deadline = 0.25
        return [await _caught(environment.step("5")) for environment in environments]

    *eight, last = asyncio.run(go(Plain, lambda self, message: gate.wait()))
    gate.set()
    assert {type(x) for x in eight} == {Verdict}
    assert isinstance(last, WorkerLost) and "8 calls of the environment Mine took over 0.25 s" in str(last)
    # An async method can be cancelled.
    assert {type(x) for x in asyncio.run(go(Async, lambda self, message: asyncio.sleep(1000)))} == {Verdict}


def test_calls_that_were_late_and_have_ended_do_not_count() -> None:
    """Over a long run, many calls may be late; only those that still run take threads for ever."""
    gate, ended = threading.Event(), threading.Semaphore(0)

    def late(self: Any, message: str) -> None:
        gate.wait()
        ended.release()

    before = set(threading.enumerate())

    async def go() -> list[Any]:
        make = user_environment(having(Plain, reply=late), deadline=PATIENCE)
        environments = [make() for _ in range(MAX_HUNG + 1)]
        for environment in environments:
            await environment.reset(PROMPT, Random(3))
        environment._threads.deadline = 0.1
        results = [await _caught(environment.step("5")) for environment in environments[:-1]]
        threads = set(threading.enumerate()) - before
        gate.set()
        for _ in range(MAX_HUNG):
            assert ended.acquire(timeout=PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        environment._threads.deadline = PATIENCE
        return [*results, await _caught(environments[-1].step("5"))]

    *_, last = asyncio.run(go())
    assert not isinstance(last, WorkerLost)


async def _caught(call: Any) -> Any:
    try:
        return await call
    except WorkerLost as error:
        return error


def test_plain_methods_run_concurrently_up_to_a_maximum() -> None:
    largest, running = 0, 0
    lock, together = threading.Lock(), threading.Barrier(MAX_THREADS)

    def step(self: Any, message: str) -> str:
        nonlocal largest, running
        with lock:
            running += 1
            largest = max(largest, running)
        together.wait(timeout=PATIENCE)  # passes only if that many calls run at once
        with lock:
            running -= 1
        return message

    async def go() -> list[Observation]:
        make = user_environment(having(Plain, step=step), deadline=PATIENCE)
        environments = [make() for _ in range(2 * MAX_THREADS)]
        await asyncio.gather(*(environment.reset(PROMPT, Random(3)) for environment in environments))
        return await asyncio.gather(*(environment.step(str(i)) for i, environment in enumerate(environments)))

    assert asyncio.run(go()) == [str(i) for i in range(2 * MAX_THREADS)]
    assert largest == MAX_THREADS


def test_restore_after_a_kill() -> None:
    restored: list[tuple[str, Observation]] = []

    def restore(self: Any, message: str, observation: Observation) -> None:
        restored.append((message, observation))

    async def go(make: Any) -> Observation:
        environment = user_environment(make, deadline=PATIENCE)()
        await environment.reset(PROMPT, Random(3))
        return await environment.restore("5", "6")

    assert asyncio.run(go(having(Plain, reply="7"))) == "7"  # without restore, step is called again
    assert asyncio.run(go(having(Plain, reply="7", restore=restore))) == "6" and restored == [("5", "6")]
    failed = asyncio.run(go(having(Plain, restore=raises(ValueError("lost")))))
    assert isinstance(failed, Verdict) and without_place(failed.cause) == "Mine.restore: ValueError: lost"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (having(Plain, __init__=lambda self, level: None), "cannot be created"),
        (type("Mine", (), {"reset": Plain.reset}), "has no method step"),
        (type("Mine", (), {"step": Plain.step}), "has no method reset"),
    ],
)
def test_an_invalid_class_is_an_error_before_the_run(make: Any, error: str) -> None:
    with pytest.raises(Usage, match=f"the environment .*{error}"):
        user_environment(make)


def test_a_factory_function() -> None:
    kind = having(Plain, reply="6")

    def make() -> Any:
        return kind()

    assert observations(make) == (None, "6")
    assert observations(lambda: 7)[0] == Verdict(
        Outcome.unverifiable,
        cause="test_a_factory_function.<locals>.<lambda>.reset: TypeError: the environment has no method reset",
    )
