"""Async agents that end the program, swallow their cancellation, or leave tasks behind: the run goes on."""

import asyncio
import inspect
import signal
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from groupwise.data import GenerationRequest, Ids, Outcome
from groupwise.rollout.agents import agent_asyncio_tasks
from tests.models.test_templates import CHATML, trained
from tests.rollout.test_agents import Client, plain_clients, ran, says, user

__all__ = ["plain_clients"]


async def leaves(error: BaseException | None = None) -> None:
    await asyncio.sleep(0)
    if error is None:
        sys.exit(3)
    raise error


async def ends_the_program(row: Any, client: Client) -> None:
    await client.chat([user("a")])
    await leaves()


async def interrupts(row: Any, client: Client) -> None:
    await leaves(KeyboardInterrupt("no"))


async def leaves_in_a_task(row: Any, client: Client) -> None:
    await asyncio.gather(client.chat([user("a")]), leaves())


async def leaves_in_a_group(row: Any, client: Client) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leaves(GeneratorExit()))


async def cancels_itself(row: Any, client: Client) -> None:
    await leaves(asyncio.CancelledError())


@pytest.mark.parametrize(
    ("agent", "cause"),
    [
        (ends_the_program, "in leaves: RuntimeError: SystemExit: 3"),
        (interrupts, "in leaves: RuntimeError: KeyboardInterrupt: no"),
        (leaves_in_a_task, "in leaves: RuntimeError: SystemExit: 3"),
        (leaves_in_a_group, "in leaves_in_a_group: ExceptionGroup: unhandled errors"),
        (cancels_itself, "in leaves: RuntimeError: CancelledError"),
    ],
)
def test_an_agent_that_ends_the_program_is_unverifiable_with_its_line(agent: Any, cause: str) -> None:
    vocabulary = trained(CHATML)
    (sample,) = ran(agent, says(vocabulary, "one"), vocabulary)[0].samples
    assert sample.verdict and sample.verdict.outcome is Outcome.unverifiable
    assert sample.verdict.cause.startswith("the agent: test_agent_tasks.py:") and cause in sample.verdict.cause


@pytest.fixture
def interrupt_on_sigusr1() -> Iterator[None]:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupt_on_sigusr1")
def test_a_signal_in_an_agents_code_interrupts_the_run() -> None:
    async def agent(row: Any, client: Client) -> None:
        signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(KeyboardInterrupt):
        ran(agent, says(trained(CHATML)), trained(CHATML))


def test_an_agent_that_swallows_its_cancellation_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline passes, and nothing waits for it: neither the episode nor the end of the event loop."""
    monkeypatch.setattr(agent_asyncio_tasks, "PATIENCE", 0.02)
    swallowed, finished = list[int](), list[int]()

    async def stubborn() -> None:
        for _ in range(40):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                swallowed.append(1)
        finished.append(1)

    async def agent(row: Any, client: Client) -> None:
        other = asyncio.ensure_future(stubborn())
        await stubborn()
        await other

    vocabulary = trained(CHATML)
    (sample,) = ran(agent, says(vocabulary), vocabulary, runner={"deadline": 0.02})[0].samples
    assert sample.verdict and "within 0.02 seconds" in sample.verdict.cause
    assert len(swallowed) == 2 and not finished, "each task is cancelled once, and then dropped"


def test_anyio_runs_in_an_agent() -> None:
    """MCP clients, and HTTP clients with sockets, use it. It may read the state of a task's coroutine."""

    async def agent(row: Any, client: Client) -> float:
        task = asyncio.current_task()
        assert task and inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_RUNNING  # type: ignore[arg-type]
        async with anyio.create_task_group() as group:
            group.start_soon(client.chat, [user("a")])
            with anyio.move_on_after(0.01) as scope:
                await anyio.sleep(60)
            group.start_soon(anyio.sleep, 60)
            await anyio.sleep(0)
            group.cancel_scope.cancel()
        return float(scope.cancelled_caught)

    (sample,) = ran(agent, says(trained(CHATML), "one"), trained(CHATML))[0].samples
    assert sample.verdict and sample.verdict.value == 1.0, sample.verdict


def test_the_tasks_of_an_agent_end_with_it_and_those_of_an_engine_do_not() -> None:
    vocabulary, ended, background = trained(CHATML), list[str](), list[Any]()

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def answers(request: GenerationRequest) -> Ids:
        background.append(asyncio.ensure_future(forever("engine")))
        await asyncio.sleep(0)
        return (*vocabulary.encode("one"), min(vocabulary.eos_ids))

    async def agent(row: Any, client: Client) -> float:
        background.append(asyncio.ensure_future(forever("agent")))
        await client.chat([user("a")])
        assert not ended
        return 1.0

    rollout, _ = ran(agent, answers, vocabulary, n=1)
    assert [s.verdict.value for s in rollout.samples if s.verdict] == [1.0]
    assert ended == ["agent", "engine"] and len(background) == 2, "the engine's ends with the event loop"
