"""Environments from a user's class: each call has a deadline, and each failure becomes a verdict."""

import asyncio
import inspect
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import Any

from groupwise.core import Usage, WorkerLost, describe_error
from groupwise.core.errors import ends_run
from groupwise.data import Environment, Observation, Outcome, Prompt, Verdict
from groupwise.data.verdicts import as_verdict

__all__ = ["user_environment"]

MAX_CHARACTERS = 1 << 20
"""The most characters of an environment's reply."""
MAX_THREADS = 64
"""The most calls of a user's plain (not async) methods that run at the same time."""
MAX_HUNG = 8
"""While this many calls of plain methods have exceeded the deadline and still run, a new one raises WorkerLost."""


def user_environment(make: Callable[[], Any], *, deadline: float = 10.0) -> Callable[[], Environment]:
    """A factory of environments, one for each conversation, from a class or a function without arguments.

    The class has `reset(prompt, random)`, which may return the opening text, and `step(message)`, which returns text,
    None (the end; the verifier judges the last turn) or a Verdict (the end). The method `restore(message,
    observation)` is optional; after a kill it is called instead of `step` for each logged observation. The
    conversation ends as unverifiable, with the cause, if a method raises, returns another type or takes longer than
    `deadline` seconds. An `async` method runs in the event loop and must not block. A plain method runs in its own
    thread, which cannot be stopped: while eight calls hang, WorkerLost is raised. Usage if `make` needs arguments or
    the class lacks a method.
    """
    name = getattr(make, "__qualname__", type(make).__name__)
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        fix = "write a class whose __init__ needs no arguments"
        raise Usage(f"the environment {name} cannot be created", evidence=str(error), fix=fix) from None
    for method in ("reset", "step"):
        if isinstance(make, type) and not callable(getattr(make, method, None)):
            fix = "write def reset(self, prompt, random) and def step(self, message)"
            raise Usage(f"the environment {name} has no method {method}", fix=fix)
    threads = EnvironmentThreads(name, deadline)
    return lambda: UserEnvironment(threads, make)


class EnvironmentThreads:
    """The threads that run plain methods, shared by all conversations with one environment class."""

    def __init__(self, name: str, deadline: float) -> None:
        self.name, self.deadline = name, deadline
        self._free = asyncio.Semaphore(MAX_THREADS)
        self._hung: list[Thread] = []

    async def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method, a plain one in a thread: its result or exception, or TimeoutError beyond the deadline."""
        if inspect.iscoroutinefunction(method):
            async with asyncio.timeout(self.deadline):
                return await method(*args)
        async with self._free:
            self._hung = [thread for thread in self._hung if thread.is_alive()]
            if len(self._hung) >= MAX_HUNG:
                raise WorkerLost(
                    f"{MAX_HUNG} calls of the environment {self.name} took over {self.deadline:g} s and still run",
                    evidence="the thread of such a call cannot be stopped",
                    fix="limit the time of its methods, or make them async",
                )
            result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            thread = Thread(target=_run, args=(result, result.get_loop(), method, args), daemon=True)
            thread.start()
            try:
                async with asyncio.timeout(self.deadline):
                    return await result
            except TimeoutError:
                self._hung += [thread] if result.cancelled() else []
                raise


def _missing(method: str) -> Callable[..., Any]:
    def missing(*_: Any) -> Any:
        raise TypeError(f"the environment has no method {method}")

    return missing


def _run(result: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, method: Callable[..., Any], args: Any) -> None:
    """In a thread: call the method, and pass the result to the event loop if it is still open."""
    try:
        value, error = method(*args), None
    except BaseException as failure:
        value, error = None, failure

    def finish() -> None:
        if not result.done():
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:  # the loop is closed: the caller is gone
        return


class UserEnvironment:
    """One instance of the user's class, for one conversation."""

    def __init__(self, threads: EnvironmentThreads, make: Callable[[], Any]) -> None:
        self._threads, self._make = threads, make
        self._inner: Any = None

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        inner = await self._guarded("__init__", self._make)
        if isinstance(inner, Verdict):
            return inner
        self._inner = inner
        return await self._observe("reset", prompt, random)

    async def step(self, message: str) -> Observation:
        return await self._observe("step", message)

    async def restore(self, message: str, observation: Observation) -> Observation:
        if not hasattr(self._inner, "restore"):
            return await self.step(message)
        failure = await self._guarded("restore", self._inner.restore, message, observation)
        return failure if isinstance(failure, Verdict) else observation

    async def _observe(self, name: str, *args: Any) -> Observation:
        observation = await self._guarded(name, getattr(self._inner, name, _missing(name)), *args)
        if isinstance(observation, Verdict):
            return as_verdict(observation)
        if isinstance(observation, str) and len(observation) > MAX_CHARACTERS:
            return self._failure(name, f"it returned {len(observation)} characters")
        if observation is not None and not isinstance(observation, str):
            return self._failure(name, f"it returned {type(observation).__name__}: expected text, None or a Verdict")
        return observation

    async def _guarded(self, name: str, method: Any, *args: Any) -> Any:
        """Call a method of the user's environment: its result, or an unverifiable verdict with the cause."""
        try:
            return await self._threads.call(method, *args)
        except Exception as error:
            if ends_run(error):
                raise
            deadline = isinstance(error, TimeoutError) and not error.args
            cause = f"no answer within {self._threads.deadline:g} s" if deadline else describe_error(error)
            return self._failure(name, cause)

    def _failure(self, name: str, cause: str) -> Verdict:
        return Verdict(Outcome.unverifiable, cause=f"{self._threads.name}.{name}: {cause}"[:500])
