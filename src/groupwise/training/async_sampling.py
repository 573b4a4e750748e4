"""Samples the rollouts of later iterations while the learner takes the steps of the present one."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from groupwise.rollout import IterationRollouts, PendingIteration

AHEAD = "ahead"
"""The phase in which the event loop only samples for later iterations, while the learner works in a thread."""
Generate = Callable[[int, PendingIteration | None], Awaitable[IterationRollouts]]
"""Generates the rollouts of an iteration, given by its number; with `Pending`, from its progress."""


class AheadSampler:
    """The rollouts of a run's iterations, in order, sampled up to `max_staleness` iterations ahead.

    With staleness 0, an iteration is sampled when it is requested. With staleness 1, the next one is sampled while the
    learner works, and weights change only while nothing is sampled: each sample has one version. With a larger
    staleness, the sampling of `max_staleness + 1` iterations goes on at once, and weights change meanwhile.

    The sampling of an iteration begins when the learner is at most `max_staleness` iterations before it, so no trained
    token is older. `last` is the number of the run's iterations. `pending` is the sampling that has begun, which it
    updates.
    """

    def __init__(self, pending: list[PendingIteration], generate: Generate, *, max_staleness: int, last: int) -> None:
        self._pending, self._generate, self._max_staleness, self._last = pending, generate, max_staleness, last
        self._tasks: list[asyncio.Task[IterationRollouts]] = []
        self._begun = self._ended = 0.0

    async def next(self, iteration: int) -> IterationRollouts:
        """The rollouts of the learner's next iteration. A cancelled call can be repeated."""
        if self._max_staleness <= 1 and not self._pending:
            return await self._generate(iteration, None)
        self._start(iteration, iteration + (self._max_staleness if self._max_staleness > 1 else 0))
        rollouts = await asyncio.shield(self._tasks[0])
        del self._tasks[0], self._pending[0]
        return rollouts

    def begin(self, iteration: int) -> None:
        """Start the sampling that may go on while the learner works on this iteration."""
        self._begun = time.monotonic()
        self._start(iteration + 1, iteration + self._max_staleness)

    async def settle(self) -> None:
        """with staleness 1, wait until nothing is sampled: the weights may change."""
        if self._max_staleness == 1:
            await asyncio.gather(*self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Interrupt the sampling. Its progress remains in `pending`."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        self._tasks.clear()

    @property
    def idle(self) -> float:
        """Seconds since `begin` that the engines have been idle; 0 while they sample, or if there was nothing to."""
        waits = self._tasks and all(task.done() for task in self._tasks)
        return time.monotonic() - max(self._begun, self._ended) if waits else 0.0

    def _start(self, first: int, to: int) -> None:
        """Continue the sampling of all pending iterations, from `first` on, and begin the next ones up to `to`."""
        while first + len(self._pending) <= min(to, self._last - 1):
            self._pending.append(PendingIteration())
        for index in range(len(self._tasks), len(self._pending)):
            self._tasks.append(asyncio.create_task(self._sampled(first + index, self._pending[index])))

    async def _sampled(self, iteration: int, pending: PendingIteration) -> IterationRollouts:
        try:
            return pending.completed_rollouts or await self._generate(iteration, pending)
        finally:
            self._ended = time.monotonic()
