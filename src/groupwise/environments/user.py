"""Environments from a user's plain class, each call under a deadline, each failure a verdict."""

import asyncio
import inspect
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import Any

from groupwise.data import Environment, GroupwiseError, Observation, Outcome, Prompt, Usage, Verdict, WorkerLost
from groupwise.data.verdicts import as_verdict

__all__ = ["user_environment"]

LONGEST = 1 << 20
"""Characters of the longest answer."""
AT_ONCE = 64
"""Calls of plain methods that run at the same time."""
LEFT = 8
"""Calls that never came back, after which an environment is given up."""


def user_environment(made: Callable[[], Any], *, deadline: float = 10.0) -> Callable[[], Environment]:
    """What makes an environment for each conversation, from a class (or any call without arguments) that makes one.

    It has `reset(prompt, random)`, which may return opening words, and `step(said)`, which returns words, None (the
    end; the verifier judges the last turn) or a Verdict (the end, and what it is worth). `recall(said, reply)`, called
    after a kill instead of `step`, may be left out. An exception, another value, and a call that takes longer than
    `deadline` seconds end the conversation unverifiable, with their cause. An `async` method runs in the event loop and
    must not block; a plain one runs in a thread of its own, which nobody can end: after eight that never came back,
    `WorkerLost`. Usage for what makes no environment.
    """
    name = getattr(made, "__qualname__", type(made).__name__)
    try:
        inspect.signature(made).bind()
    except (TypeError, ValueError) as error:
        fix = "write a class that is made without arguments"
        raise Usage(f"the environment {name} cannot be made", evidence=str(error), fix=fix) from None
    for verb in ("reset", "step"):
        if isinstance(made, type) and not callable(getattr(made, verb, None)):
            fix = "write def reset(self, prompt, random) and def step(self, said)"
            raise Usage(f"the environment {name} has no {verb}", fix=fix)
    house = EnvironmentThreads(name, deadline)
    return lambda: UserEnvironment(house, made)


class EnvironmentThreads:
    """The threads in which plain methods run, shared by all conversations with one kind of environment."""

    def __init__(self, name: str, deadline: float) -> None:
        self.name, self.deadline = name, deadline
        self._room = asyncio.Semaphore(AT_ONCE)
        self._left = 0

    async def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """What the method returns or raises; TimeoutError beyond the deadline."""
        if inspect.iscoroutinefunction(method):
            async with asyncio.timeout(self.deadline):
                return await method(*args)
        async with self._room:
            if self._left >= LEFT:
                what = f"{LEFT} calls of the environment {self.name} took more than {self.deadline:g} s"
                seen = "each runs on in a thread that nobody can end"
                raise WorkerLost(what, evidence=seen, fix="bound what it does, or write async def")
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            Thread(target=_run, args=(answer, answer.get_loop(), method, args), daemon=True).start()
            try:
                async with asyncio.timeout(self.deadline):
                    return await answer
            except TimeoutError:
                self._left += answer.cancelled()
                raise


def _absent(verb: str) -> Callable[..., Any]:
    def absent(*_: Any) -> Any:
        raise TypeError(f"it has no {verb}")

    return absent


def _run(answer: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, method: Callable[..., Any], args: Any) -> None:
    """In a thread: the call, and its end told to the loop if there is still one."""
    try:
        value, error = method(*args), None
    except BaseException as failure:
        value, error = None, failure

    def tell() -> None:
        if not answer.done():
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop is closed: nobody waits
        return


class UserEnvironment:
    """One environment in one conversation."""

    def __init__(self, house: EnvironmentThreads, made: Callable[[], Any]) -> None:
        self._house, self._made = house, made
        self._inner: Any = None

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        made = await self._tried("__init__", self._made)
        if isinstance(made, Verdict):
            return made
        self._inner = made
        return await self._asked("reset", prompt, random)

    async def step(self, said: str) -> Observation:
        return await self._asked("step", said)

    async def recall(self, said: str, reply: Observation) -> Observation:
        if not hasattr(self._inner, "recall"):
            return await self.step(said)
        failed = await self._tried("recall", self._inner.recall, said, reply)
        return failed if isinstance(failed, Verdict) else reply

    async def _asked(self, verb: str, *args: Any) -> Observation:
        reply = await self._tried(verb, getattr(self._inner, verb, _absent(verb)), *args)
        if isinstance(reply, Verdict):
            return as_verdict(reply)
        if isinstance(reply, str) and len(reply) > LONGEST:
            return self._failed(verb, f"it said {len(reply)} characters")
        if reply is not None and not isinstance(reply, str):
            return self._failed(verb, f"it returned {type(reply).__name__}: expected text, None or a Verdict")
        return reply

    async def _tried(self, verb: str, method: Any, *args: Any) -> Any:
        """What the method returns; a verdict with the cause where it fails."""
        try:
            return await self._house.call(method, *args)
        except GroupwiseError:  # not this conversation's fault
            raise
        except Exception as error:
            ours = isinstance(error, TimeoutError) and not error.args
            why = f"no answer within {self._house.deadline:g} s" if ours else f"{type(error).__name__}: {error}"
            return self._failed(verb, why)

    def _failed(self, verb: str, why: str) -> Verdict:
        return Verdict(Outcome.unverifiable, cause=f"{self._house.name}.{verb}: {why}"[:500])
