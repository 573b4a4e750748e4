"""Grades answers in bulk: answers that arrive together share one call of the user's function."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from groupwise.core import Usage
from groupwise.data import Prompt, Sample, Verdict, Verifier
from groupwise.verifiers.grade_function_arguments import Item

Waiting = tuple[Item, "asyncio.Future[Verdict]"]


@runtime_checkable
class BulkGrader(Protocol):
    """An object that grades several answers in one call."""

    async def grade(self, items: Sequence[Item]) -> list[Verdict]: ...

    def gate(self, prompts: Sequence[Prompt], /) -> None: ...

    def close(self) -> None: ...


class BulkVerifier(Verifier):
    """Grades several answers in one call: the first `most`, or all that arrive within `wait` seconds of the first.

    Which answers share a call depends on time. So the function must return for each answer what it returns for it
    alone.
    """

    has_own_deadline = True

    def __init__(self, grader: BulkGrader, most: Any = 64, wait: Any = 0.02) -> None:
        numbers = isinstance(most, int) and not isinstance(most, bool) and isinstance(wait, int | float)
        if not (numbers and most >= 1 and 0 <= wait <= 60):
            fix = "set most to an integer >= 1, and wait to seconds with 0 <= wait <= 60"
            raise Usage(f"invalid limits of a bulk grader: most = {most!r}, wait = {wait!r}", fix=fix)
        self.grader, self.most, self.wait = grader, most, wait
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Waiting]] = WeakKeyDictionary()
        self._calls: set[asyncio.Task[None]] = set()

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        loop = asyncio.get_running_loop()
        waiting, verdict = self._waiting.setdefault(loop, []), loop.create_future()
        waiting.append(((prompt, sample), verdict))
        if len(waiting) >= self.most:
            self._send(loop)
        elif len(waiting) == 1:
            loop.call_later(self.wait, self._send, loop)
        return await verdict

    def gate(self, prompts: Sequence[Prompt], /) -> None:
        """Try the function on made-up answers, together and alone."""
        self.grader.gate(prompts)

    def close(self) -> None:
        """End the grader's workers."""
        self.grader.close()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a call for the waiting answers. The timer of an earlier call may do so early; no grade changes."""
        if waiting := self._waiting.pop(loop, []):
            task = loop.create_task(self._grade(waiting))
            self._calls.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._calls.discard)

    async def _grade(self, waiting: Sequence[Waiting]) -> None:
        """Grade these answers in one call, and pass each waiting caller its verdict, or the exception."""
        futures = [future for _, future in waiting]
        try:
            verdicts = await self.grader.grade([item for item, _ in waiting])
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, verdict in zip(futures, verdicts, strict=True):
            if not future.done():
                future.set_result(verdict)
