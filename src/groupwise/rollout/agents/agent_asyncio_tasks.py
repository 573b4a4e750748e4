"""The tasks of an async agent: they can neither end the run nor outlive their episode."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from groupwise.core import as_error

__all__ = ["AgentAsyncioTasks"]

PATIENCE = 5.0
"""Seconds for the tasks of an agent to clean up after they are cancelled. Tasks that still run are dropped."""
CURRENT: "ContextVar[AgentAsyncioTasks | None]" = ContextVar("CURRENT", default=None)
"""The tasks of the agent whose code runs now."""


class AgentAsyncioTasks:
    """A context for one run of an async agent: its own task, and the tasks that it starts.

    An exception that ends a program, such as that of `sys.exit()`, is an error of the agent. At the end of the context
    all tasks are cancelled. A task that goes on, because its code catches `CancelledError`, is dropped after `PATIENCE`
    seconds.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.dropped = False

    async def __aenter__(self) -> "AgentAsyncioTasks":
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is None:
            loop.set_task_factory(new_task)
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.tasks:
                self._cancel()
                await asyncio.wait(self.tasks, timeout=PATIENCE)
        finally:
            self.dropped = True
            self._cancel()

    async def run(self, agent: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of the agent. RuntimeError if it ends the program, or cancels itself."""
        task = self.task(agent())
        await asyncio.wait({task})
        try:
            return task.result()
        except asyncio.CancelledError as error:
            raise as_error(error) from None

    def task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> "asyncio.Task[Any]":
        """A new task of the agent. `options` are those of `asyncio.Task`."""
        token = CURRENT.set(self)
        try:
            task = asyncio.Task(AgentCoroutine(coroutine, self), **options)
        finally:
            CURRENT.reset(token)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


class AgentCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine of an agent, between its task and the user's code. After `dropped` it ends at its next step."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], tasks: AgentAsyncioTasks) -> None:
        self.coroutine, self.tasks = coroutine, tasks

    def send(self, value: Any) -> Any:
        return self.step(self.coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        if self.tasks.dropped:
            raise error[0]
        return self.step(self.coroutine.throw, *error)

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Any:
        return self.coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """The state of the user's coroutine, such as `cr_running`, which anyio reads."""
        return getattr(self.coroutine, name)

    def step(self, resume: Callable[..., Any], *values: Any) -> Any:
        """Run the user's code up to its next `await`. The watchdog finds code that blocks the loop by this name."""
        try:
            return resume(*values)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise as_error(error) from None


def new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    """The task factory of event loops with agents: a task that an agent's code creates is the agent's."""
    context = options.get("context")
    tasks = CURRENT.get() if context is None else context.get(CURRENT)
    if tasks is None:
        return asyncio.Task(coroutine, loop=loop, **options)
    return tasks.task(coroutine, loop=loop, **options)
